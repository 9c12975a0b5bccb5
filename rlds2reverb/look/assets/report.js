// After `probe.js`, in one module with it.
{
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
  /** An axis; `unit` is what its numbers were divided by, `sign` stands behind each, and counts have ticks at whole numbers only. */
  const axis = (size, label, { unit = 1, sign = "", whole = false } = {}) => ({
    stroke: colour("--quiet"), size, label, labelSize: label ? 16 : 0, labelFont: "11px system-ui, sans-serif", labelGap: 0,
    font: "11px system-ui, sans-serif", gap: 3,
    grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), size: 4 },
    values: (_, splits) => splits.map((one) => (one === null || (whole && one % 1) ? "" : short(one * unit) + sign)),
    ...(whole ? { incrs: Array.from({ length: 42 }, (_, at) => [1, 2, 5][at % 3] * 10 ** Math.floor(at / 3)) } : {}),
  });

  /** A range with some room around it. */
  const around = (_, low, high) => {
    if (low === null) return [0, 1];
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return [low - room, high + room];
  };

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
        ...base({ unit, whole: chart.values && unit === 1 }, one ? { whole: true } : { sign: "%" }),
        scales: { x: { time: false, range: () => range }, y: { range: (_, low, high) => [0, (high || 1) * 1.05] } },
        series: [{}, ...data.slice(1).map((_, at) => ({
          stroke: colours[at], fill: one ? colour("--fill") : undefined, width: 1.25, points: { show: false },
          paths: one ? uPlot.paths.bars({ size: [1, 100], gap: 1 }) : uPlot.paths.stepped({ align: 0 }),
        }))],
      }, data];
    }
    if (chart.kind === "points") {
      const unit = unitOf(chart.y);
      return [{
        ...base({}, { unit }),
        scales: { x: { time: false, range: around }, y: { range: around } },
        series: [{}, { stroke: colours[0], fill: colour("--fill"), width: 1, paths: () => null, points: { show: true, size: 6, fill: colours[0] } }],
      }, [chart.at, chart.y[0].map((one) => one / unit)]];
    }
    const lines = chart.y;
    const band = chart.low && lines.length === 1;
    const all = [...lines, ...(band ? [chart.low, chart.high] : [])];
    const unit = unitOf(all);
    const data = [chart.at, ...all.map((line) => line.map((one) => (one === null ? null : one / unit)))];
    return [{
      ...base({ whole: true }, { unit, sign: chart.unit }),
      scales: { x: { time: false, range: (_, low, high) => (low === high ? [low - 1, high + 1] : [low, high]) },
        y: { range: (_, low, high) => [chart.zero ? 0 : around(_, low, high)[0], around(_, low, high)[1]] } },
      series: [{}, ...lines.map((_, at) => ({ stroke: colours[at % 4], width: 1.5, points: { show: chart.at.length === 1, size: 5 } })),
        ...(band ? [0, 1].map(() => ({ stroke: colour("--fill"), width: 1, points: { show: false } })) : [])],
      bands: band ? [{ series: [3, 2], fill: colour("--fill") }] : [],
    }, data];
  };

  const names = [0, 1].map((at) => document.querySelector(`.key${at}`)?.textContent ?? "");
  const exact = (value) => {
    if (value === null || value === undefined) return "none";
    const size = Math.abs(value);
    return size >= 1e15 || (size && size < 1e-4) ? value.toPrecision(4) : (+value.toPrecision(7)).toLocaleString("en-US", { maximumFractionDigits: 7 });
  };

  /** What can be chosen of a chart, and its values in words. */
  const readings = (chart) => {
    if (chart.kind === "bars") {
      const { data, unit } = bars(chart);
      const width = 2 ** chart.exponent;
      const ends = chart.counts.length > 1 ? 1 : 0;
      const tell = (at) => {
        const low = (chart.first + at - ends) * width;
        const where = chart.values ? `${chart.x} ${exact(low)}`.trim() : `${chart.x} ${exact(low)} to ${exact(low + width)}`.trim();
        if (!ends) return `${where}: ${exact(data[1][at] ?? 0)} ${chart.of}`;
        return `${where}: ${data.slice(1).map((line, place) => `${names[place]} ${exact(+(line[at] ?? 0).toPrecision(3))} %`).join(", ")}`;
      };
      return { keys: data[0], tell, unit };
    }
    if (chart.kind === "points") {
      const x = [...new Set(chart.at)];
      const tell = (at) => {
        const found = chart.y[0].filter((_, place) => chart.at[place] === x[at]);
        const values = found.length > 1 ? `${exact(Math.min(...found))} to ${exact(Math.max(...found))} in ${found.length} episodes` : exact(found[0]);
        return `${chart.x} ${exact(x[at])}: ${chart.of} ${values}`;
      };
      return { keys: x, tell };
    }
    const tell = (at) => {
      const one = (line, place) => {
        const name = names[1] ? `${names[place]} ` : chart.y.length > 1 ? `[${place}] ` : "";
        const spread = chart.low && chart.y.length === 1 ? ` (${exact(chart.low[at])} to ${exact(chart.high[at])})` : "";
        return `${name}${exact(line[at])}${chart.unit ? ` ${chart.unit}` : ""}${spread}`;
      };
      return `${chart.x} ${exact(chart.at[at])}: ${chart.y.map(one).join(", ")}`;
    };
    return { keys: chart.at, tell };
  };

  /** A heat map: dimensions across, values upwards; the more values of a dimension in a bin, the stronger. */
  const drawHeat = (chart, place) => {
    const count = chart.mean.length;
    const left = 46;
    const bottom = 18;
    const ratio = devicePixelRatio || 1;
    const canvas = document.createElement("canvas");
    const [width, height] = [place.clientWidth, place.clientHeight];
    [canvas.width, canvas.height] = [width * ratio, height * ratio];
    place.replaceChildren(canvas);
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const [across, up] = [(width - left) / count, (height - bottom) / chart.bins];
    pen.fillStyle = colour("--a");
    for (let at = 0; at < count; at += 1) {
      for (let bin = 0; bin < chart.bins; bin += 1) {
        const digit = parseInt(chart.cells[at * chart.bins + bin], 36);
        if (!digit) continue;
        pen.globalAlpha = 0.12 + (0.88 * digit) / 35;
        pen.fillRect(left + at * across, height - bottom - (bin + 1) * up, across + 0.3, up + 0.3);
      }
    }
    pen.globalAlpha = 1;
    pen.fillStyle = colour("--quiet");
    pen.font = "11px system-ui, sans-serif";
    const scale = 2 ** chart.exponent;
    pen.textAlign = "right";
    pen.fillText(short(chart.first * scale), left - 4, height - bottom);
    pen.fillText(short((chart.first + chart.bins) * scale), left - 4, 10);
    pen.fillText(`${chart.x} ${count - 1}`, width, height - 4);
    pen.textAlign = "left";
    pen.fillText("0", left, height - 4);
    const keys = Array.from({ length: count }, (_, at) => at);
    const tell = (at) => `${chart.x} ${at}: ${exact(chart.low[at])} to ${exact(chart.high[at])}, mean ${exact(chart.mean[at])}`;
    return { keys, tell, x: (at) => left + (at + 0.5) * across, box: () => ({ top: 0, height: height - bottom }) };
  };

  const players = new Map();
  /** Draws a chart, and makes it tell its values; in an episode its cursor and that of the player are one. */
  const draw = (place) => {
    const chart = charts[+place.dataset.chart];
    drawn.get(place)?.destroy?.();
    let made;
    if (chart.kind === "heat") {
      made = drawHeat(chart, place);
      drawn.set(place, {});
    } else {
      const [settings, data] = options(chart, Math.max(80, Math.floor(place.clientWidth)), place.clientHeight);
      const plot = new uPlot(settings, data, place);
      drawn.set(place, plot);
      const over = () => ({ top: plot.over.offsetTop, height: plot.over.clientHeight });
      made = { ...readings(chart), x: (key) => plot.over.offsetLeft + plot.valToPos(key, "x"), box: over };
    }
    const mark = (key) => {
      place.querySelector(".cursor")?.remove();
      if (key === null) return;
      const cursor = document.createElement("i");
      cursor.className = "cursor";
      const { top, height } = made.box();
      Object.assign(cursor.style, { left: `${made.x(key)}px`, top: `${top}px`, height: `${height}px` });
      place.append(cursor);
    };
    const player = players.get(place.closest(".episode"));
    queueMicrotask(() => {  // uPlot knows its scales by then
      const choose = probe(place, { ...made, mark, ...(player ? { stays: true, moved: player.show } : {}) });
      player?.follow(place, choose);
    });
  };
  for (const episode of document.querySelectorAll(".episode")) {
    const player = episode.querySelector(".player");
    if (!player) continue;
    const [slider, button, told] = ["input", "button", "output"].map((name) => player.querySelector(name));
    const cameras = [...player.querySelectorAll("figure")].map((camera) => ({
      image: camera.querySelector("img"),
      frames: [...document.getElementById(camera.dataset.strip).querySelectorAll("img")],
    }));
    const last = +slider.max;
    const followers = new Map();
    let timer = 0;
    const show = (step) => {
      slider.value = step;
      told.textContent = `step ${step} (index 0 to ${last})`;
      for (const { image, frames } of cameras) {
        const before = frames.filter((one) => +one.dataset.step <= step);
        const { src } = before[before.length - 1] || frames[0];
        if (image.src !== src) image.src = src;
      }
      for (const choose of followers.values()) choose(step);
    };
    const stop = () => { clearInterval(timer); timer = 0; button.textContent = "Play"; };
    slider.addEventListener("input", () => { stop(); show(+slider.value); });
    button.addEventListener("click", () => {
      if (timer) return stop();
      button.textContent = "Stop";
      const stride = Math.ceil(last / 200);
      timer = setInterval(() => show(+slider.value >= last ? 0 : Math.min(last, +slider.value + stride)), 120);
    });
    show(0);
    players.set(episode, {
      show: (step) => { stop(); show(step); },
      follow: (place, choose) => { followers.set(place, choose); choose(+slider.value); },
    });
  }

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

  for (const wanted of document.querySelectorAll("[data-filter]")) {
    wanted.addEventListener("input", () => {
      const part = wanted.value.trim().toLowerCase();
      for (const one of document.querySelectorAll("[data-path]")) one.hidden = !one.dataset.path.toLowerCase().includes(part);
    });
  }
  for (const button of document.querySelectorAll("[data-fold]")) {
    button.addEventListener("click", () => {
      const columns = [...document.querySelectorAll("details.column")];
      const folds = columns.some((one) => one.open);
      for (const one of columns) one.open = !folds;
      button.textContent = folds ? "Unfold all" : "Fold all";
    });
  }

  const opened = () => {
    const place = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let box = place && place.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
    if (place) place.scrollIntoView();
  };
  addEventListener("hashchange", opened);
  opened();
}
