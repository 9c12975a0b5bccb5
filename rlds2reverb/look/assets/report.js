"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const drawn = new Map();

  /** What numbers are divided by to be drawn: uPlot has ticks from 1e-32 to 1e32 only. */
  const unitOf = (lists) => {
    let most = 0;
    for (const list of lists) for (const value of list) most = Math.max(most, Math.abs(value));
    return most > 1e24 || (most && most < 1e-24) ? 10 ** Math.max(-307, Math.floor(Math.log10(most))) : 1;
  };

  /** A histogram's bins as x positions (their middles) and heights; where two are compared in shares, with an empty bin at each end. */
  const bars = (chart) => {
    const width = 2 ** chart.exponent;
    const shares = chart.counts.length > 1;
    const ends = shares ? 1 : 0;
    const count = Math.max(...chart.counts.map((one) => one.length)) + 2 * ends;
    const x = Array.from({ length: count }, (_, bin) => (chart.first + bin - ends + (chart.values ? 0 : 0.5)) * width);
    const heights = chart.counts.map((counts) => {
      const total = counts.reduce((sum, one) => sum + one, 0);
      return x.map((_, bin) => (!shares ? counts[bin] || null : total ? (100 * (counts[bin - 1] || 0)) / total : null));
    });
    const unit = unitOf([x]);
    return { data: [x.map((one) => one / unit), ...heights], width: width / unit, unit };
  };

  const short = (value) => {
    if (value === null) return "";
    const size = Math.abs(value);
    if (size >= 1e15 || (size && size < 1e-3)) return value.toExponential(1).replace("e+", "e");
    for (const [least, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]])
      if (size >= least) return +(value / (least === 1e4 ? 1e3 : least)).toPrecision(3) + unit;
    return String(+value.toPrecision(4));
  };
  const axis = (size, label, unit = 1) => ({
    stroke: colour("--quiet"), size, label, labelSize: label ? 16 : 0, labelFont: "11px system-ui, sans-serif", labelGap: 0,
    font: "11px system-ui, sans-serif", gap: 3,
    grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), size: 4 },
    values: (_, splits) => splits.map((one) => short(one === null ? null : one * unit)),
  });

  const options = (chart, width, height) => {
    const colours = [colour("--a"), colour("--b"), colour("--c"), colour("--quiet")];
    const base = (x, y) => ({
      width, height, padding: [8, 16, 0, 0], cursor: { show: true, x: false, y: false, points: { show: false }, drag: { x: true, y: false } },
      legend: { show: false }, axes: [axis(24, chart.x, x), { ...axis(46, "", y), space: 26 }],
    });
    if (chart.kind === "bars") {
      const { data, width: bin, unit } = bars(chart);
      const one = data.length === 2;
      const xs = data[0];
      const range = [xs[0] - bin * 0.75, xs[xs.length - 1] + bin * 0.75];
      return [{
        ...base(unit, 1),
        scales: { x: { time: false, range: () => range }, y: { range: (_, low, high) => [0, (high || 1) * 1.05] } },
        series: [{}, ...data.slice(1).map((_, at) => ({
          stroke: colours[at], fill: one ? colour("--fill") : undefined, width: 1.25, points: { show: false },
          paths: one ? uPlot.paths.bars({ size: [1, 100], gap: 1 }) : uPlot.paths.stepped({ align: 0 }),
        }))],
      }, data];
    }
    const lines = chart.y;
    const band = chart.low && lines.length === 1;
    const all = [...lines, ...(band ? [chart.low, chart.high] : [])];
    const unit = unitOf(all);
    const data = [chart.at, ...all.map((line) => line.map((one) => (one === null ? null : one / unit)))];
    return [{
      ...base(1, unit),
      scales: { x: { time: false, range: (_, low, high) => (low === high ? [low - 1, high + 1] : [low, high]) },
        y: { range: (_, low, high) => {
          if (low === null) return [0, 1];
          const room = (high - low || Math.abs(high) || 1) * 0.06;
          return [chart.zero ? 0 : low - room, high + room];
        } } },
      series: [{}, ...lines.map((_, at) => ({ stroke: colours[at % 4], width: 1.5, points: { show: chart.at.length === 1, size: 5 } })),
        ...(band ? [0, 1].map(() => ({ stroke: colour("--fill"), width: 1, points: { show: false } })) : [])],
      bands: band ? [{ series: [3, 2], fill: colour("--fill") }] : [],
    }, data];
  };

  const draw = (place) => {
    const chart = charts[+place.dataset.chart];
    const old = drawn.get(place);
    if (old) old.destroy();
    const [settings, data] = options(chart, Math.max(80, Math.floor(place.clientWidth)), place.clientHeight);
    drawn.set(place, new uPlot(settings, data, place));
  };
  const places = [...document.querySelectorAll(".chart")];
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting && !drawn.has(target)) draw(target);
  }, { rootMargin: "300px" });
  for (const place of places) seen.observe(place);
  const again = () => { for (const place of [...drawn.keys()]) if (place.clientWidth) draw(place); };
  dark.addEventListener("change", again);
  let waiting;
  let across = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === across) return;
    across = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(again, 100);
  });
  addEventListener("beforeprint", () => { for (const place of places) if (!drawn.has(place) && place.clientWidth) draw(place); });

  for (const player of document.querySelectorAll(".player")) {
    const [image, slider, button, told] = ["img", "input", "button", "output"].map((name) => player.querySelector(name));
    const frames = [...document.getElementById(player.dataset.strip).querySelectorAll("img")];
    let timer = 0;
    const show = (at) => {
      slider.value = at;
      image.src = frames[at].src;
      told.textContent = `step ${frames[at].dataset.step} (index 0 to ${player.dataset.steps})`;
    };
    const stop = () => { clearInterval(timer); timer = 0; button.textContent = "Play"; };
    slider.addEventListener("input", () => { stop(); show(+slider.value); });
    button.addEventListener("click", () => {
      if (timer) return stop();
      button.textContent = "Stop";
      timer = setInterval(() => show((+slider.value + 1) % frames.length), 120);
    });
    show(0);
  }

  const opened = () => {
    const place = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let box = place && place.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
    if (place) place.scrollIntoView();
  };
  addEventListener("hashchange", opened);
  opened();
})();
