"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const make = (tag, text, name) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (name) element.className = name;
    return element;
  };

  // Colours: the style sheet has them all; a plot is drawn again when they change.
  const root = document.documentElement;
  const themes = ["system", "light", "dark"];
  const remembered = (value) => {
    try {
      if (value === undefined) return localStorage.getItem("bireme-theme");
      localStorage.setItem("bireme-theme", value);
    } catch { /* a page from a file may have no storage */ }
    return value;
  };
  const probe = make("span");
  probe.hidden = true;
  document.body.append(probe);
  const colour = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const coloured = (spec) =>
    JSON.parse(JSON.stringify(spec).replace(/"\$([a-z-]+)"/g, (_, name) => JSON.stringify(colour(name))));
  const config = () => {
    const quiet = colour("quiet-ink"), line = colour("line");
    const font = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";
    return {
      background: "transparent", font, view: { stroke: null },
      axis: { labelColor: quiet, titleColor: quiet, gridColor: line, domainColor: line, tickColor: line,
        titleFontWeight: "normal", labelFontSize: 11.5, titleFontSize: 12, titlePadding: 8, labelLimit: 110 },
      axisX: { grid: false }, axisY: { domain: false, ticks: false, tickCount: 5, titleAnchor: "end" },
      legend: { labelColor: colour("ink"), labelFontSize: 12, symbolSize: 60, columnPadding: 14, rowPadding: 4 },
    };
  };

  const drawn = new Map();
  const draw = async (element, spec, datasets) => {
    const shown = coloured(spec);
    if (datasets) shown.datasets = datasets;
    if (element.clientWidth < 520 && shown.layer) narrow(shown);
    drawn.set(element, [spec, datasets]);
    const many = datasets && Object.values(datasets).some((rows) => rows.length > 1500);
    const result = await vegaEmbed(element, shown, {
      actions: false, ast: true, renderer: many ? "canvas" : "svg", config: config(), tooltip: { theme: "bireme" },
    });
    result.view.addEventListener("click", (_, item) => {
      if (item && item.datum && item.datum.n) reveal(item.datum.n);
    });
    element.dataset.drawn = "yes";
  };
  const narrow = (spec) => {
    for (const layer of spec.layer) {
      for (const channel of ["shape", "color"]) {
        const legend = layer.encoding && layer.encoding[channel] && layer.encoding[channel].legend;
        if (legend) legend.columns = 3;
      }
    }
  };
  const redraw = () => { for (const [element, [spec, datasets]] of drawn) if (element.isConnected) draw(element, spec, datasets); else drawn.delete(element); };
  const setTheme = (theme) => {
    if (theme === "system") delete root.dataset.theme; else root.dataset.theme = theme;
    byId("theme").querySelector("span").textContent = theme;
    redraw();
  };
  let theme = themes.includes(remembered()) ? remembered() : "system";
  setTheme(theme);
  byId("theme").addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    remembered(theme);
    setTheme(theme);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  // The command.
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      const code = byId(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(code.textContent);
      } catch {
        getSelection().selectAllChildren(code);
        document.execCommand("copy");
      }
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1600);
    });
  }

  // The table. A row is an array; `columns` says what is where.
  const columns = data.columns, rows = data.trials, at = Object.fromEntries(columns.map((each, place) => [each.key, place]));
  const text = (row, column) => {
    const value = row[at[column.key]];
    if (value === null || value === undefined) return "";
    if (column.kind === "figure") return value.toLocaleString("en", { minimumSignificantDigits: 5, maximumSignificantDigits: 5 });
    if (column.kind === "seconds") return value.toFixed(1);
    if (column.kind === "ratio") return value.toFixed(3);
    return String(value);
  };
  const visible = columns.filter((each) => each.title);
  const haystack = rows.map((row) => [...visible.map((each) => text(row, each)), row[at.configuration], row[at.reason]].join(" ").toLowerCase());
  const state = { key: data.sort.key, down: data.sort.down, shown: 25 };
  const opened = new Set();
  let order = [];
  const compare = (key, down) => (a, b) => {
    const x = rows[a][at[key]], y = rows[b][at[key]];
    const gone = (value) => value === null || value === undefined || value === "";
    if (gone(x) || gone(y)) return gone(x) - gone(y) || a - b; // what has no value comes last either way
    const numbers = !isNaN(x) && !isNaN(y); // also those that are shown as they were typed
    const found = numbers ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
    return (down ? -found : found) || a - b;
  };
  const endClass = { ok: "ok", "out of memory": "memory", pruned: "pruned", running: "now", interrupted: "", stopped: "" };
  const head = document.querySelector("#table thead tr"), body = document.querySelector("#table tbody");
  for (const column of visible) {
    const cell = make("th", undefined, column.kind === "text" ? "" : "number");
    const button = make("button", column.title);
    button.type = "button";
    cell.scope = "col";
    button.addEventListener("click", () => {
      state.down = state.key === column.key ? !state.down : column.kind === "figure" && data.maximized;
      state.key = column.key;
      render();
    });
    cell.append(button);
    head.append(cell);
  }
  const detail = (row) => {
    const line = make("tr", undefined, "detail"), cell = make("td"), inside = make("div", undefined, "inside");
    cell.colSpan = visible.length;
    inside.append(make("p", row[at.configuration], "mono"));
    if (row[at.reason]) inside.append(make("p", row[at.reason]));
    const series = data.series[row[at.name]];
    if (series) {
      inside.append(make("p", `${series.name} over the run` + (series.warm_up ? `; the first ${series.warm_up} values are warm-up and do not count (thin line)` : ""), "note"));
      const plot = make("div", undefined, "plot");
      inside.append(plot);
      const values = series.values.map((v, i) => ({ i: i + 1, v, c: i >= series.from }));
      requestAnimationFrame(() => draw(plot, data.charts.series, { series: values }));
    }
    const log = data.logs[row[at.name]];
    inside.append(make("p", log ? "The last lines of its log" : `Its log: ${row[at.folder]}/`, "note"));
    if (log) inside.append(make("pre", log.join("\n")));
    cell.append(inside);
    line.append(cell);
    return line;
  };
  const tableRow = (place) => {
    const row = rows[place], line = make("tr", undefined, row[at.best] ? "best" : "");
    for (const column of visible) {
      const cell = make("td", undefined, column.kind === "text" ? "" : "number");
      if (column.key === "name") {
        const button = make("button", row[at.name]);
        button.type = "button";
        button.setAttribute("aria-expanded", opened.has(place));
        button.addEventListener("click", () => {
          if (opened.delete(place)) line.nextSibling.remove(); else { opened.add(place); line.after(detail(row)); }
          button.setAttribute("aria-expanded", opened.has(place));
        });
        cell.className = "open";
        cell.append(button);
      } else if (column.key === "cause") {
        const kind = row[at.cause];
        cell.append(make("span", kind === "ok" ? "measured" : kind, `end ${kind in endClass ? endClass[kind] : "bad"}`));
      } else cell.textContent = text(row, column);
      line.append(cell);
    }
    return line;
  };
  const render = () => {
    const words = byId("find").value.toLowerCase().split(/\s+/).filter(Boolean), end = byId("ends").value, phase = byId("phases").value;
    order = rows.map((_, place) => place).filter((place) =>
      (!end || rows[place][at.cause] === end) && (!phase || rows[place][at.phase] === phase) && words.every((word) => haystack[place].includes(word)));
    order.sort(compare(state.key, state.down));
    visible.forEach((column, place) => {
      const cell = head.children[place];
      if (column.key === state.key) cell.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
    const part = document.createDocumentFragment();
    for (const place of order.slice(0, state.shown)) {
      part.append(tableRow(place));
      if (opened.has(place)) part.append(detail(rows[place]));
    }
    body.replaceChildren(part);
    byId("count").textContent = `${order.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")}`;
    byId("more").hidden = byId("all").hidden = order.length <= state.shown;
  };
  const reveal = (name) => {
    const place = rows.findIndex((row) => row[at.name] === name);
    opened.add(place);
    byId("find").value = name;
    byId("ends").value = byId("phases").value = "";
    render();
    byId("trials").scrollIntoView({ behavior: "smooth" });
  };
  for (const [id, key] of [["ends", "cause"], ["phases", "phase"]]) {
    for (const value of [...new Set(rows.map((row) => row[at[key]]))].filter(Boolean)) {
      const option = make("option", value === "ok" ? "measured" : value);
      option.value = value;
      byId(id).append(option);
    }
    byId(id).addEventListener("change", render);
  }
  byId("find").addEventListener("input", render);
  byId("find").form.addEventListener("submit", (event) => event.preventDefault());
  byId("more").addEventListener("click", () => { state.shown += 100; render(); });
  byId("all").addEventListener("click", () => { state.shown = Infinity; render(); });
  render();

  // The plots.
  const points = rows.filter((row) => row[at.ended] !== null).map((row) => ({
    t: row[at.ended], v: row[at.figure], n: row[at.name], p: row[at.configuration], e: row[at.cause] === "ok" ? "measured" : row[at.cause], k: row[at.kind],
  }));
  (async () => {
    for (const element of document.querySelectorAll("[data-chart]")) {
      const name = element.dataset.chart;
      await draw(element, data.charts[name], name === "progress" ? { trials: points } : undefined);
    }
    root.dataset.ready = "yes";
  })();
})();
