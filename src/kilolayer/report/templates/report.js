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

  function decode(panel) {
    const bytes = Uint8Array.from(atob(panel.codes), (character) => character.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    const width = panel.step_spans.length, height = panel.row_sites.length;
    const scale = (panel.high - panel.low) / (LAST - FIRST);
    const z = [], bad = [], text = [], marks = { x: [], y: [] };
    const stride = Math.max(1, Math.ceil(Math.max(width, height) / 12));
    let anyBad = false;
    for (let row = 0; row < height; row++) {
      z.push([]); bad.push([]); text.push([]);
      for (let column = 0; column < width; column++) {
        const code = view.getUint16(2 * (row * width + column), true);
        let value = null, words = "not recorded";
        if (code >= FIRST) {
          value = panel.low + (code - FIRST) * scale;
          words = fromScale(value, panel);
        } else if (code === ZERO) {
          value = panel.scale[0];
          words = "0";
        } else if (code === NONFINITE) {
          words = "non-finite";
          anyBad = true;
        }
        z[row].push(value);
        bad[row].push(code === NONFINITE ? 1 : null);
        text[row].push(hoverText(panel, row, column, words));
      }
    }
    if (anyBad) crosses(panel, bad, marks, stride);
    return { z, bad: anyBad ? bad : null, text, marks };
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

  function hoverText(panel, row, column, words) {
    const [first, last] = panel.row_sites[row].map((index) => data.names[index]);
    const steps = panel.step_spans[column];
    const thinned = first !== last || steps[0] !== steps[1];
    const lines = [inert(span(first, last)), "step " + span(steps[0], steps[1]),
      (thinned ? "most extreme: " : "") + words];
    if (steps[0] === 0 && panel.row_predicted.length && panel.row_predicted[row] !== "-")
      lines.push("predicted at step 0: " + panel.row_predicted[row]);
    return lines.join("<br>");
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
      z: cells.z, zmin: panel.scale[0], zmax: panel.scale[1], colorscale: VIRIDIS, text: cells.text, hoverinfo: "text",
      hoverongaps: true,
    })];
    if (cells.bad) {
      traces.push(Object.assign({}, common, {
        z: cells.bad, zmin: 0, zmax: 1, colorscale: [[0, RED], [1, RED]], text: cells.text, hoverinfo: "text",
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

  // Lines between bands, and the selected block in each of them.
  function shapes(panel) {
    const across = { xref: "paper", x0: 0, x1: 1, yref: "y" };
    const between = panel.bands.slice(1).map((band) => Object.assign({}, across, {
      type: "line", y0: band[1], y1: band[1], line: { color: GRAY, width: 1 },
    }));
    const chosen = panel.blocks.filter((one) => one[0] === selected).map((one) => Object.assign({}, across, {
      type: "rect", y0: one[1], y1: one[2], line: { color: RED, width: 1.5 }, fillcolor: "rgba(215, 38, 61, 0.18)",
    }));
    return between.concat(chosen);
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
      shapes: shapes(panel),
      annotations: bandNames(panel),
    });
    if (panel.points) layout.legend.itemsizing = "constant";
    Plotly.newPlot(element, heatTraces(panel).concat(curveTraces(panel)), layout, CONFIG);
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
      type: "scatter", mode: panel.x.length > 1 ? "lines" : "markers", x: panel.x, y: panel.y,
      line: { color: CURVES[0], width: 1.8 }, hoverinfo: "text", text: texts(panel),
    }, {
      type: "scatter", mode: "markers", x: panel.above.x, y: panel.above.x.map(() => panel.y_range[1]),
      marker: { symbol: "triangle-up", size: 9, color: CURVES[0] }, cliponaxis: false,
      hoverinfo: "text", text: texts(panel.above),
    }], layout, CONFIG);
  }

  function draw(element) {
    if (element.dataset.drawn) return;
    element.dataset.drawn = "yes";
    const panel = data.panels[Number(element.dataset.panel)];
    (element.dataset.kind === "loss" ? drawLoss : drawDepth)(element, panel);
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
    document.querySelectorAll(".plot[data-kind=depth]").forEach((element) => {
      const panel = data.panels[Number(element.dataset.panel)];
      if (element.dataset.drawn) Plotly.relayout(element, { shapes: shapes(panel) });
    });
    document.querySelectorAll("[data-readout]").forEach((element) => {
      element.textContent = selected === null ? "" : readout(data.panels[Number(element.dataset.readout)]);
    });
  }

  function listen() {
    const form = document.getElementById("select");
    if (!form) return;
    const input = document.getElementById("block");
    input.addEventListener("input", () => {
      const block = Number(input.value);
      select(Number.isInteger(block) && block >= 1 && block <= Number(input.max) ? block : null);
    });
    document.getElementById("clear").addEventListener("click", () => select(null));
    form.addEventListener("submit", (event) => event.preventDefault());
    document.addEventListener("keydown", (event) => { if (event.key === "Escape") select(null); });
  }

  const plots = document.querySelectorAll(".plot");
  const seen = new IntersectionObserver((entries) => {
    entries.filter((entry) => entry.isIntersecting).forEach((entry) => {
      seen.unobserve(entry.target);
      draw(entry.target);
    });
  }, { rootMargin: "600px" });
  plots.forEach((element) => seen.observe(element));
  window.addEventListener("beforeprint", () => plots.forEach((element) => {
    draw(element);
    Plotly.relayout(element, { autosize: false, width: PRINT_WIDTH });
  }));
  window.addEventListener("afterprint", () => plots.forEach((element) => {
    Plotly.relayout(element, { autosize: true, width: null });
  }));
  listen();
})();
