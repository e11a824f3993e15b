"use strict";
(() => {
  const HEIGHT = 240, LEFT = 52, RIGHT = 12, TOP = 8, BOTTOM = 38, SECOND = 1000;
  const SVG = "http://www.w3.org/2000/svg";
  const byId = (id) => document.getElementById(id);
  // All texts of the view become text nodes, never HTML.
  const fill = (element, attributes, children) => {
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  const html = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
  const svg = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

  const text = (value) => {
    if (value === null || value === undefined) return "–";
    if (value && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5)) return value.toExponential(2).replace(/\.?0*e\+?/, "e");
    return String(Number(value.toPrecision(4)));
  };
  const ticks = (low, high, whole) => {
    const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max(whole ? 1 : 0, power * (whole ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10]).find((one) => one * power >= rough));
    const first = Math.ceil(low / step - 1e-9);
    return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => (first + i) * step);
  };
  const decades = (low, high) => {
    const powers = [];
    for (let power = Math.floor(low); power <= Math.ceil(high); power += 1) {
      for (const digit of high - low < 1.2 ? [1, 2, 5] : high - low < 2.5 ? [1, 3] : [1]) powers.push(Math.log10(digit) + power);
    }
    const inside = powers.filter((one) => one >= low && one <= high);
    return inside.filter((_, i) => i % Math.ceil(inside.length / 6) === 0);
  };
  // From numbers to places on an axis, with ticks. On a logarithmic one 0 is at its lower end.
  const axis = (values, log, from, to, whole = false) => {
    const above = values.filter((one) => one > 0), used = log && Math.max(...above) > 3 * Math.min(...above);
    const on = used ? Math.log10 : Number, placed = values.map(on).filter(Number.isFinite);
    let low = Math.min(...placed), high = Math.max(...placed);
    if (!(high > low)) { low -= used ? 0.5 : Math.abs(low) * 0.1 || 0.5; high += used ? 0.5 : Math.abs(high) * 0.1 || 0.5; }
    const place = (one) => from + (to - from) * (one - low) / (high - low);
    const marked = used ? decades(low, high) : ticks(low, high, whole);
    return { at: (one) => place(used && !(one > 0) ? low : on(one)), ticks: marked.map((one) => [place(one), text(used ? 10 ** one : one)]) };
  };
  const nearest = (xs, x) => xs.reduce((best, one, i) => (Math.abs(one - x) < Math.abs(xs[best] - x) ? i : best), 0);

  const charts = new Map();
  const draw = (chart) => {
    const { figure, data, pointed } = chart, width = Math.max(240, figure.querySelector(".plot").clientWidth);
    const points = data.lines.flatMap((line) => line.x.map((x, i) => [x, line.y[i]])).filter(([, y]) => y !== null);
    const x = axis(points.length ? points.map(([one]) => one) : [0, 1], false, LEFT, width - RIGHT, true);
    const y = axis(points.length ? points.map(([, one]) => one) : [0, 1], data.log, HEIGHT - BOTTOM, TOP);
    const drawn = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": data.title });
    for (const [at, label] of y.ticks) {
      drawn.append(svg("line", { class: "ruled", x1: LEFT, x2: width - RIGHT, y1: at, y2: at }));
      drawn.append(svg("text", { x: LEFT - 6, y: at + 4, "text-anchor": "end" }, label));
    }
    for (const [at, label] of x.ticks) drawn.append(svg("text", { x: at, y: HEIGHT - BOTTOM + 17, "text-anchor": "middle" }, label));
    drawn.append(svg("text", { x: (LEFT + width - RIGHT) / 2, y: HEIGHT - 3, "text-anchor": "middle" }, data.x_label));
    for (const mark of data.marks) drawn.append(svg("line", { class: "mark", x1: x.at(mark), x2: x.at(mark), y1: TOP, y2: HEIGHT - BOTTOM }));
    const legend = data.lines.map((line) => {
      const seen = pointed === null ? line.x.length - 1 : nearest(line.x, pointed);
      let path = "", pen = "M";
      line.x.forEach((one, i) => {
        if (line.y[i] === null) { pen = "M"; return; }
        path += `${pen}${x.at(one).toFixed(1)} ${y.at(line.y[i]).toFixed(1)}`;
        pen = "L";
      });
      const ink = `var(--${line.ink})`, shown = line.y[seen];
      const curve = svg("path", { class: line.x.length > 100 ? "curve thin" : "curve", d: path, opacity: line.opacity });
      curve.style.stroke = ink;
      drawn.append(curve);
      if (shown !== null && shown !== undefined) {
        const dot = svg("circle", { cx: x.at(line.x[seen]), cy: y.at(shown), r: 3, opacity: line.opacity });
        dot.style.fill = ink;
        drawn.append(dot);
      }
      const swatch = html("i");
      swatch.style.background = ink;
      swatch.style.opacity = line.opacity;
      return html("li", {}, swatch, `${line.name} `, html("b", {}, text(shown) + data.unit));
    });
    if (pointed !== null) {
      drawn.append(svg("line", { class: "at", x1: x.at(pointed), x2: x.at(pointed), y1: TOP, y2: HEIGHT - BOTTOM }));
      legend.unshift(html("li", {}, `${data.x_label} `, html("b", {}, text(pointed))));
    }
    drawn.addEventListener("pointermove", (event) => {
      const place = event.clientX - drawn.getBoundingClientRect().left;
      const all = [...new Set(points.map(([one]) => one))];
      if (all.length) { chart.pointed = all[nearest(all.map(x.at), place)]; draw(chart); }
    });
    figure.querySelector(".plot").replaceChildren(drawn);
    figure.querySelector(".legend").replaceChildren(...legend);
  };

  const showCharts = (wanted) => {
    for (const [title, chart] of charts) if (!wanted.some((one) => one.title === title)) { chart.figure.remove(); charts.delete(title); }
    for (const data of wanted) {
      const former = charts.get(data.title);
      if (former && JSON.stringify(former.data) === JSON.stringify(data)) continue;
      const chart = former || { figure: html("figure", {}, html("h2", {}, data.title), html("ul", { class: "legend" }), html("div", { class: "plot" })), pointed: null };
      chart.data = data;
      if (!former) {
        charts.set(data.title, chart);
        chart.figure.addEventListener("pointerleave", () => { chart.pointed = null; draw(chart); });
      }
    }
    byId("charts").append(...wanted.map((one) => charts.get(one.title).figure));
    for (const chart of charts.values()) draw(chart);
  };
  const sheet = ({ caption, columns, rows }) => html("section", {}, html("h2", {}, caption), html("div", { class: "sheet", role: "group", "aria-label": caption, tabindex: "0" }, html("table", {},
    html("thead", {}, html("tr", {}, ...columns.map((one) => html("th", { scope: "col", class: one.numeric ? "number" : "" }, one.name)))),
    html("tbody", {}, ...rows.map((row) => html("tr", {}, ...row.map((cell, i) => html("td", { class: columns[i].numeric ? "number" : "" }, cell))))))));

  const say = (state) => { byId("state").textContent = state; byId("state").dataset.is = state; };
  let last = "";
  const show = (answer) => {
    const view = JSON.parse(answer);
    say(view.state);
    if (answer === last) return;
    last = answer;
    document.title = `${view.title} – normless watch`;
    byId("title").textContent = view.title;
    byId("words").textContent = view.words;
    byId("progress").hidden = !view.of;
    byId("progress").value = view.of ? view.done / view.of : 0;
    byId("problems").replaceChildren(...view.problems.map((one) => html("li", {}, one)));
    const said = view.findings.flatMap(([title, cure], i) => [html("p", {}, title), ...(cure && cure !== (view.findings[i - 1] || [])[1] ? [html("p", { class: "cure" }, cure)] : [])]);
    byId("findings").hidden = !said.length;
    byId("findings").replaceChildren(...said);
    showCharts(view.charts);
    byId("tables").replaceChildren(...view.tables.map(sheet));
    byId("settings").hidden = !view.settings.length;
    byId("settings").querySelector("dl").replaceChildren(...view.settings.flatMap(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]));
  };
  const look = async () => {
    try {
      if (!document.hidden) show(await (await fetch("view.json")).text());
    } catch {
      // normless watch was ended; its URL may come back.
      say("not reached");
      last = "";
    }
    setTimeout(look, SECOND);
  };
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; for (const chart of charts.values()) draw(chart); } });
  look();
})();
