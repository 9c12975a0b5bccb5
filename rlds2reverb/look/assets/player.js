"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const slider = document.getElementById("at");
const button = document.getElementById("play");
const told = document.getElementById("told");
const images = [...document.querySelectorAll(".images > figure > img")];
const cursors = [...document.querySelectorAll(".cursor")];
const values = [...document.querySelectorAll(".value")];
let timer = null;

function show(at) {
  const step = data.steps[at];
  slider.value = at;
  told.textContent = `step ${step.toLocaleString("en")} (index 0 to ${(data.count - 1).toLocaleString("en")})`;
  images.forEach((image, column) => {
    const source = data.pictures[column][at];
    if (source) image.src = source;
  });
  const x = ((step + 0.5) / data.count) * data.width;
  for (const cursor of cursors) {
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
  }
  values.forEach((value, curve) => { value.textContent = data.values[curve][at]; });
}

function stop() {
  clearInterval(timer);
  timer = null;
  button.textContent = "Play";
}

function play() {
  const last = data.steps.length - 1;
  if (Number(slider.value) === last) show(0);
  button.textContent = "Pause";
  timer = setInterval(() => {
    const next = Number(slider.value) + 1;
    if (next > last) stop();
    else show(next);
  }, 1000 / data.fps);
}

if (slider) {
  button.addEventListener("click", () => (timer === null ? play() : stop()));
  slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
  for (const thumb of document.querySelectorAll(".strip button")) {
    thumb.addEventListener("click", () => { stop(); show(Number(thumb.dataset.at)); });
  }
  show(0);
}
