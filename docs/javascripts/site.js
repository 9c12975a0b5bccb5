// What the theme puts into boxes that scroll gets the focus, so that keys scroll it; and each bar of buttons has a name of its own.
function prepare() {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .md-sidebar__scrollwrap")) box.tabIndex = 0;
  document.querySelectorAll(".md-code__nav").forEach((bar, number) => bar.setAttribute("aria-label", `code ${number + 1}`));
}
new MutationObserver(prepare).observe(document.body, { childList: true, subtree: true });
prepare();
