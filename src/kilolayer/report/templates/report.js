(function () {
  "use strict";

  const data = JSON.parse(document.getElementById("report-data").textContent);
  const NONFINITE = 1, ZERO = 2, FIRST = 3, LAST = 65535;
  const COLORS = data.colors;
  const VIRIDIS = COLORS.viridis.map((color, index) => [index / (COLORS.viridis.length - 1), color]);
  const RED = COLORS.nonfinite;
  const GRAY = "#8a8f98";
  const CURVES = COLORS.curves;
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
  const SYMBOLS = ["circle", "diamond", "square", "triangle-up", "cross"];
  const CONFIG = { displayModeBar: false, responsive: true, doubleClick: "reset" };
  // Two columns of pictures fit on a sheet of A4 or Letter.
  const PRINT_WIDTH = 340;
  const KINDS = { depth: drawDepth, loss: drawLoss, structure: drawStructure, trial: drawTrial };
  const cursors = new Map();
  const tip = document.getElementById("tip");
  let selected = null;

  // Plotly reads a little HTML in every text it is given; names must stay names.
  function inert(text) {
    return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  }

  function number(value) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size < 1e-3 || size >= 1e4) return value.toExponential(2).replace("e+", "e");
    return value.toPrecision(3).includes("e") ? value.toFixed(0) : value.toPrecision(3);
  }

  function fromScale(position, panel) {
    return number(panel.log ? Math.pow(10, position) : position);
  }

  function span(first, last) {
    return first === last ? String(first) : first + " to " + last;
  }

  // A cell on its scale: null where nothing was recorded, -Infinity for zero on a log scale, Infinity if not finite.
  function cell(panel, row, column) {
    if (!panel.view) {
      const bytes = Uint8Array.from(atob(panel.codes), (character) => character.charCodeAt(0));
      panel.view = new DataView(bytes.buffer);
    }
    const code = panel.view.getUint16(2 * (row * panel.step_spans.length + column), true);
    if (code >= FIRST) return panel.low + (code - FIRST) * (panel.high - panel.low) / (LAST - FIRST);
    return code === NONFINITE ? Infinity : code === ZERO ? -Infinity : null;
  }

  function cellWords(panel, row, column) {
    const value = cell(panel, row, column);
    if (value === null) return "not recorded";
    return value === Infinity ? "non-finite" : value === -Infinity ? "0" : fromScale(value, panel);
  }

  function decode(panel) {
    const width = panel.step_spans.length, height = panel.row_sites.length;
    const z = [], bad = [], marks = { x: [], y: [] };
    const stride = Math.max(1, Math.ceil(Math.max(width, height) / 12));
    let anyBad = false;
    for (let row = 0; row < height; row++) {
      z.push([]); bad.push([]);
      for (let column = 0; column < width; column++) {
        const value = cell(panel, row, column);
        anyBad = anyBad || value === Infinity;
        z[row].push(value === Infinity ? null : value === -Infinity ? panel.scale[0] : value);
        bad[row].push(value === Infinity ? 1 : null);
      }
    }
    if (anyBad) crosses(panel, bad, marks, stride);
    return { z, bad: anyBad ? bad : null, marks };
  }

  // A cross in the middle of every patch of non-finite cells: color alone tells nobody who cannot see it.
  function crosses(panel, bad, marks, stride) {
    for (let top = 0; top < bad.length; top += stride) {
      for (let left = 0; left < bad[0].length; left += stride) {
        const found = [];
        for (let row = top; row < Math.min(top + stride, bad.length); row++)
          for (let column = left; column < Math.min(left + stride, bad[0].length); column++)
            if (bad[row][column]) found.push([row, column]);
        if (!found.length) continue;
        const [row, column] = found[Math.floor(found.length / 2)];
        marks.x.push((panel.x_edges[column] + panel.x_edges[column + 1]) / 2);
        marks.y.push((panel.y_edges[row] + panel.y_edges[row + 1]) / 2);
      }
    }
  }

  function hoverLines(panel, row, column) {
    const [first, last] = panel.row_sites[row].map((index) => data.names[index]);
    const steps = panel.step_spans[column];
    const thinned = first !== last || steps[0] !== steps[1];
    const lines = [span(first, last), "step " + span(steps[0], steps[1]),
      (thinned ? "most extreme: " : "") + cellWords(panel, row, column)];
    if (steps[0] === 0 && panel.row_predicted.length && panel.row_predicted[row] !== "-")
      lines.push("predicted at step 0: " + panel.row_predicted[row]);
    return lines;
  }

  // Texts of a hundred thousand cells take longer to write than the map to draw: one is written when it is asked for.
  function showTip(panel, event) {
    const point = event.points.find((one) => one.data.type === "heatmap");
    if (!point) return;
    const [row, column] = point.pointNumber, { clientX, clientY } = event.event;
    tip.textContent = hoverLines(panel, row, column).join("\n");
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(Math.min(clientX + 14, window.innerWidth - box.width - 4), 0) + "px";
    tip.style.top = Math.max(clientY - box.height - 10, 0) + "px";
  }

  function hideTip() {
    tip.hidden = true;
  }

  function siteAt(panel, place) {
    const row = panel.y_edges.findIndex((edge) => edge > place) - 1;
    const [first, last] = panel.row_sites[Math.max(row, 0)].map((index) => data.names[index]);
    return inert(span(first, last));
  }

  function heatTraces(panel) {
    const cells = decode(panel);
    const common = { type: "heatmap", x: panel.x_edges, y: panel.y_edges, showscale: false, xaxis: "x", yaxis: "y" };
    const traces = [Object.assign({}, common, {
      z: cells.z, zmin: panel.scale[0], zmax: panel.scale[1], colorscale: VIRIDIS, hoverinfo: "none",
      hoverongaps: true,
    })];
    if (cells.bad) {
      traces.push(Object.assign({}, common, {
        z: cells.bad, zmin: 0, zmax: 1, colorscale: [[0, RED], [1, RED]], hoverinfo: "none",
        hoverongaps: false,
      }));
      traces.push({
        type: "scatter", mode: "markers", x: cells.marks.x, y: cells.marks.y, hoverinfo: "skip", showlegend: false,
        marker: { symbol: "x-thin", size: 6, color: "#ffffff", line: { color: "#ffffff", width: 1.5 } },
      });
    }
    return traces;
  }

  function curveTraces(panel) {
    // Several matrices per block differ by design: a line through them would only draw the zigzag.
    const place = { type: "scatter", xaxis: "x2", yaxis: "y", mode: panel.points ? "markers" : "lines" };
    const traces = [];
    const theory = panel.predicted;
    // Each stretch of sites is a shape of its own: toself closes what lies between two gaps.
    if (theory && theory.band) {
      traces.push(Object.assign({}, place, theory.band, {
        mode: "lines", fill: "toself", fillcolor: "rgba(138, 143, 152, 0.35)", line: { width: 0, color: GRAY },
        name: "predicted band", hoverinfo: "skip", showlegend: false,
      }));
    }
    if (theory) {
      traces.push(Object.assign({}, place, theory.line, {
        line: { color: GRAY, width: 3 }, marker: { color: GRAY, size: 7 }, name: "predicted", legendrank: 2000,
        hoverinfo: "text", text: pointTexts(panel, theory.line, "predicted at step 0: "),
      }));
    }
    panel.curves.forEach((curve, index) => {
      traces.push(Object.assign({}, place, {
        x: curve.x, y: curve.y, line: { color: CURVES[index], dash: DASHES[index], width: 1.8 },
        marker: { color: CURVES[index], symbol: SYMBOLS[index], size: 3.5 }, name: String(curve.step),
        hoverinfo: "text", text: pointTexts(panel, curve, "step " + curve.step + "<br>"),
      }));
    });
    return traces;
  }

  function pointTexts(panel, points, words) {
    return points.x.map((x, index) => x === null ? "" :
      siteAt(panel, points.y[index]) + "<br>" + words + fromScale(x, panel));
  }

  function nonfiniteLine(step, axes) {
    return Object.assign({ type: "line", x0: step, x1: step, line: { color: RED, width: 2, dash: "dash" } }, axes);
  }

  // Lines between bands, the selected block in each of them, and the cell the keyboard stands on.
  function shapes(panel, element) {
    const across = { xref: "paper", x0: 0, x1: 1, yref: "y" };
    const between = panel.bands.slice(1).map((band) => Object.assign({}, across, {
      type: "line", y0: band[1], y1: band[1], line: { color: GRAY, width: 1 },
    }));
    const chosen = panel.blocks.filter((one) => one[0] === selected).map((one) => Object.assign({}, across, {
      type: "rect", y0: one[1], y1: one[2], line: { color: RED, width: 1.5 }, fillcolor: "rgba(215, 38, 61, 0.18)",
    }));
    return between.concat(chosen, cursorShape(panel, cursors.get(element)));
  }

  function cursorShape(panel, place) {
    return place ? [{
      type: "rect", xref: "x", yref: "y", x0: panel.x_edges[place.column], x1: panel.x_edges[place.column + 1],
      y0: panel.y_edges[place.row], y1: panel.y_edges[place.row + 1], line: { color: "#ffffff", width: 2 },
    }] : [];
  }

  // Arrow keys walk from cell to cell; the line under the picture says what the mouse would show.
  const MOVES = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1],
    PageUp: [10, 0], PageDown: [-10, 0], Home: [0, -Infinity], End: [0, Infinity] };

  function walk(event) {
    const element = event.currentTarget, move = MOVES[event.key];
    if (!move || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    draw(element);
    const panel = data.panels[Number(element.dataset.panel)];
    const inside = (value, count) => Math.min(Math.max(value, 0), count - 1);
    const before = cursors.get(element);
    const place = before ? {
      row: inside(before.row + move[0], panel.row_sites.length),
      column: inside(before.column + move[1], panel.step_spans.length),
    } : { row: 0, column: 0 };
    cursors.set(element, place);
    const middle = panel.y_edges[place.row] + 0.5;
    const block = panel.blocks.find((one) => one[1] <= middle && middle < one[2]);
    select(block ? block[0] : null);
    readoutOf(element).textContent = hoverLines(panel, place.row, place.column).join(", ");
  }

  function readoutOf(element) {
    return element.parentElement.querySelector("[data-readout]");
  }

  function bandNames(panel) {
    if (panel.bands.length < 2) return [];
    return panel.bands.map((band) => ({
      text: inert(band[0]), xref: "x domain", x: 0.01, xanchor: "left", y: band[2], yref: "y", yanchor: "top",
      showarrow: false, bgcolor: "rgba(0, 0, 0, 0.55)", borderpad: 1, font: { size: 9, color: "#ffffff" },
    }));
  }

  function baseLayout() {
    return {
      margin: { l: 44, r: 8, t: 8, b: 62 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { size: 11, family: "system-ui, sans-serif" }, hovermode: "closest", dragmode: false,
      legend: { orientation: "h", x: 1, xanchor: "right", y: -0.2, yanchor: "top", font: { size: 10 },
        title: { text: "step", font: { size: 10 } }, entrywidth: 0 },
    };
  }

  function axis(title, extra) {
    return Object.assign({ title: { text: title, standoff: 4, font: { size: 11 } }, zeroline: false, fixedrange: true,
      ticks: "", tickangle: 0, automargin: false }, extra);
  }

  function drawDepth(element, panel) {
    const ends = panel.y_edges, columns = panel.x_edges;
    const layout = Object.assign(baseLayout(), {
      xaxis: axis("step", { domain: [0, 0.6], range: [columns[0], columns[columns.length - 1]], showgrid: false,
        tickmode: "array", tickvals: panel.step_ticks, ticktext: panel.step_ticks.map(String) }),
      xaxis2: axis(panel.title, { domain: [0.66, 1], range: panel.x_range, tickmode: "array",
        tickvals: panel.x_ticks[0], ticktext: panel.x_ticks[1] }),
      yaxis: axis("block", { range: [ends[0], ends[ends.length - 1]], tickmode: "array", tickvals: panel.y_ticks[0],
        ticktext: panel.y_ticks[1], showgrid: false }),
      shapes: shapes(panel, element),
      annotations: bandNames(panel),
    });
    if (panel.points) layout.legend.itemsizing = "constant";
    Plotly.newPlot(element, heatTraces(panel).concat(curveTraces(panel)), layout, CONFIG);
    element.on("plotly_hover", (event) => showTip(panel, event));
    element.on("plotly_unhover", hideTip);
    element.on("plotly_click", (event) => {
      const place = event.points[0].y;
      const block = panel.blocks.find((one) => one[1] <= place && place < one[2]);
      if (block) select(block[0]);
    });
  }

  function drawLoss(element, panel) {
    const bad = panel.nonfinite_step;
    const layout = Object.assign(baseLayout(), {
      margin: { l: 56, r: 12, t: 22, b: 40 }, showlegend: false,
      xaxis: axis("step", { tickmode: "array", tickvals: panel.x_ticks, ticktext: panel.x_ticks.map(String) }),
      yaxis: axis("loss", { range: panel.y_range, tickmode: "array", tickvals: panel.y_ticks[0],
        ticktext: panel.y_ticks[1] }),
      shapes: bad === null ? [] : [nonfiniteLine(bad, { yref: "paper", y0: 0, y1: 1 })],
      annotations: bad === null ? [] : [{ x: bad, y: 1, yref: "paper", yanchor: "bottom", showarrow: false,
        text: "× non-finite at step " + bad, xanchor: "auto" }],
    });
    const texts = (points) => points.x.map((step, index) => points.y[index] === null ? "" :
      "step " + step + "<br>loss " + fromScale(points.y[index], panel));
    Plotly.newPlot(element, [{
      type: "scatter", mode: panel.y.filter((one) => one !== null).length > 2 ? "lines" : "lines+markers",
      x: panel.x, y: panel.y,
      line: { color: CURVES[0], width: 1.8 }, hoverinfo: "text", text: texts(panel),
    }, {
      type: "scatter", mode: "markers", x: panel.above.x, y: panel.above.x.map(() => panel.y_range[1]),
      marker: { symbol: "triangle-up", size: 9, color: CURVES[0] }, cliponaxis: false,
      hoverinfo: "text", text: texts(panel.above),
    }, {
      type: "scatter", mode: "markers", x: panel.spikes.x, y: panel.spikes.y,
      marker: { symbol: "diamond-open", size: 11, color: CURVES[1], line: { width: 2 } }, cliponaxis: false,
      hoverinfo: "text", text: panel.spikes.text.map(inert),
    }], layout, CONFIG);
  }

  function drawTrial(element, panel) {
    const layout = Object.assign(baseLayout(), {
      margin: { l: 56, r: 12, t: 8, b: 62 },
      xaxis: axis("step", { tickmode: "array", tickvals: panel.x_ticks, ticktext: panel.x_ticks.map(String) }),
      yaxis: axis("loss", { range: panel.y_range, tickmode: "array", tickvals: panel.y_ticks[0],
        ticktext: panel.y_ticks[1] }),
    });
    layout.legend.title.text = "";
    Plotly.newPlot(element, panel.curves.map((curve, index) => ({
      type: "scatter", mode: curve.x.length > 1 ? "lines" : "markers", x: curve.x, y: curve.y, name: inert(curve.name),
      line: { color: CURVES[index], dash: DASHES[index], width: 1.8 }, hoverinfo: "text", text: curve.x.map(
        (step, place) => curve.y[place] === null ? "" :
          inert(curve.name) + "<br>step " + step + "<br>loss " + fromScale(curve.y[place], panel)),
    })), layout, CONFIG);
  }

  // Lanes are filled where a branch has the norm or the skip; scales that are not 1 are curves below.
  function drawStructure(element, panel) {
    const labels = panel.lanes.map((lane) => lane[0]).reverse();
    const marks = panel.lanes.map((lane) => Array.from(lane[1], Number)).reverse();
    const texts = panel.kinds.map((kind, index) => branchText(panel, index));
    const spans = panel.branches;
    const curves = panel.scales.length > 0;
    // The lanes are as high as the page reserved for them; what is left below belongs to the curves.
    const lanes = curves ? 80 / (80 + 24 * labels.length) : 0;
    const layout = Object.assign(baseLayout(), {
      margin: { l: 76, r: 12, t: 8, b: curves ? 62 : 40 }, showlegend: curves,
      xaxis: axis("branch", { range: [0.5, spans[spans.length - 1] + 0.5], showgrid: false, anchor: curves ? "y2" : "y" }),
      yaxis: axis("", { domain: [lanes, 1], range: [-0.5, labels.length - 0.5], showgrid: false,
        tickmode: "array", tickvals: labels.map((label, index) => index), ticktext: labels }),
      shapes: structureShapes(panel),
    });
    layout.legend.title.text = "";
    if (curves) layout.yaxis2 = axis("", { domain: [0, lanes - 0.1], anchor: "x", tickmode: "array",
      tickvals: panel.scale_ticks[0], ticktext: panel.scale_ticks[1] });
    const traces = [{
      type: "heatmap", x: spans, y: labels.map((label, index) => index), z: marks, showscale: false, ygap: 3,
      zmin: 0, zmax: 1, colorscale: [[0, "rgba(138, 143, 152, 0.18)"], [1, CURVES[0]]],
      text: marks.map(() => texts), hoverinfo: "text",
    }];
    panel.scales.forEach((scale, index) => traces.push({
      type: "scatter", mode: spans.length > 1 ? "lines" : "markers", x: spans, y: scale[1], yaxis: "y2", name: scale[0],
      line: { color: CURVES[index], dash: DASHES[index], width: 1.8, shape: "hvh" },
      hoverinfo: "text", text: scale[1].map((value, place) => value === null ? "" :
        texts[place] + "<br>" + scale[0] + " " + number(value)),
    }));
    Plotly.newPlot(element, traces, layout, CONFIG);
    element.on("plotly_click", (event) => {
      const index = panel.branches.indexOf(event.points[0].x);
      if (index >= 0) select(panel.blocks[index]);
    });
  }

  function branchText(panel, index) {
    return "branch " + panel.branches[index] + "<br>" + inert(data.names[panel.sites[index]]) + "<br>" +
      inert(panel.texts[panel.kinds[index]]);
  }

  function structureShapes(panel) {
    return panel.branches.filter((branch, index) => panel.blocks[index] === selected).map((branch) => ({
      type: "rect", xref: "x", x0: branch - 0.5, x1: branch + 0.5, yref: "paper", y0: 0, y1: 1,
      line: { color: RED, width: 1.5 }, fillcolor: "rgba(215, 38, 61, 0.18)",
    }));
  }

  function draw(element) {
    if (element.dataset.drawn) return;
    element.dataset.drawn = "yes";
    const panel = data.panels[Number(element.dataset.panel)];
    KINDS[element.dataset.kind](element, panel);
  }

  function readout(panel) {
    const spans = panel.blocks.filter((one) => one[0] === selected);
    const texts = spans.map((found) => {
      const band = panel.bands.find((one) => one[1] <= found[1] && found[1] < one[2]);
      const parts = panel.curves.map((curve) => {
        const index = curve.y.findIndex((y) => y !== null && found[1] <= y && y < found[2]);
        const value = index < 0 ? null : curve.x[index];
        return "step " + curve.step + ": " + (value === null ? "no value" : fromScale(value, panel));
      });
      const row = Math.max(panel.y_edges.findIndex((edge) => edge > found[1] + 0.25) - 1, 0);
      if (panel.row_predicted.length && panel.row_predicted[row] !== "-")
        parts.push("predicted at step 0: " + panel.row_predicted[row]);
      return (band[0] ? band[0] + ": " : "") + parts.join(", ");
    });
    return texts.length ? "Block " + selected + ": " + texts.join("; ") : "";
  }

  function select(block) {
    selected = block;
    document.getElementById("block").value = block === null ? "" : block;
    document.querySelectorAll(".plot[data-drawn]").forEach((element) => {
      const panel = data.panels[Number(element.dataset.panel)];
      if (element.dataset.kind === "depth") Plotly.relayout(element, { shapes: shapes(panel, element) });
      if (element.dataset.kind === "structure") Plotly.relayout(element, { shapes: structureShapes(panel) });
    });
    document.querySelectorAll("[data-readout]").forEach((element) => {
      element.textContent = selected === null ? "" : readout(data.panels[Number(element.dataset.readout)]);
    });
  }

  function clear() {
    cursors.clear();
    select(null);
  }

  function listen() {
    const form = document.getElementById("select");
    if (!form) return;
    const input = document.getElementById("block");
    input.addEventListener("input", () => {
      const block = Number(input.value);
      select(Number.isInteger(block) && block >= 1 && block <= Number(input.max) ? block : null);
    });
    document.getElementById("clear").addEventListener("click", clear);
    form.addEventListener("submit", (event) => event.preventDefault());
    document.addEventListener("keydown", (event) => { if (event.key === "Escape") clear(); });
  }

  // One picture at a time, so that the first is seen before the last is drawn.
  const waiting = [];

  function drawNext() {
    const element = waiting.shift();
    if (element) draw(element);
    if (waiting.length) setTimeout(drawNext, 0);
  }

  const plots = document.querySelectorAll(".plot");
  const seen = new IntersectionObserver((entries) => {
    const isIdle = !waiting.length;
    entries.filter((entry) => entry.isIntersecting).forEach((entry) => {
      seen.unobserve(entry.target);
      waiting.push(entry.target);
    });
    if (isIdle && waiting.length) requestAnimationFrame(() => setTimeout(drawNext, 0));
  }, { rootMargin: "600px" });
  plots.forEach((element) => seen.observe(element));
  document.querySelectorAll(".plot[tabindex]").forEach((element) => element.addEventListener("keydown", walk));
  window.addEventListener("beforeprint", () => plots.forEach((element) => {
    draw(element);
    Plotly.relayout(element, { autosize: false, width: PRINT_WIDTH });
  }));
  window.addEventListener("afterprint", () => plots.forEach((element) => {
    Plotly.relayout(element, { autosize: true, width: null });
  }));
  listen();
})();
