"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const style = () => getComputedStyle(document.documentElement);
  const color = (name) => style().getPropertyValue(name).trim();

  // Draws all charts with the colours of the theme; called again when it changes.
  let drawn = [];
  const draw = () => {
    drawn.forEach((plot) => plot.destroy());
    drawn = data.charts.map(chart);
  };
  const short = (value) => {
    if (value === 0) return "0";
    const size = Math.abs(value);
    for (const [unit, name] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
      if (size >= unit) return +(value / unit).toPrecision(3) + name;
    }
    return String(+value.toPrecision(3));
  };
  const seconds = (value) => {
    for (const [unit, name] of [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]]) {
      if (value >= unit) return +(value / unit).toPrecision(3) + " " + name;
    }
    return +(value * 1e9).toPrecision(3) + " ns";
  };
  const xText = (value) => data.xs[data.x.indexOf(value)] ?? short(value);

  function chart(one) {
    const box = document.getElementById(one.id);
    const yText = one.time ? seconds : short;
    const axis = { stroke: color("--soft"), grid: { stroke: color("--rule"), width: 1 } };
    axis.ticks = axis.grid;
    const note = box.parentElement.querySelector("figcaption span");
    const usual = note.dataset.usual;
    const plot = new uPlot({
      width: box.clientWidth,
      height: 250,
      legend: { show: false },
      cursor: { y: false, points: { size: 7 }, drag: { x: false, y: false } },
      scales: {
        x: { time: false, distr: data.log ? 3 : 1, log: 2, range: (u, min, max) =>
          data.log ? [min / 1.2, max * 1.2] : [min - (max - min) / 30, max + (max - min) / 30] },
        y: one.log ? { distr: 3 } : { range: (u, min, max) => [0, Math.max(max, ...highest(one)) * 1.08 || 1] },
      },
      axes: [
        { ...axis, label: data.axis, labelSize: 20, labelGap: 0, size: 28, splits: (u) => ticks(u.bbox.width),
          filter: (u, all) => all, values: (u, all) => all.map((v) => v === null ? "" : xText(v)) },
        { ...axis, size: 64, values: (u, all) => all.map((v) => v === null ? "" : yText(v)) },
      ],
      series: [{}].concat(one.series.map((series) => ({
        label: series.limit || data.series[series.name].name,
        stroke: color(series.limit ? "--s7" : "--s" + data.series[series.name].color),
        width: 2, dash: series.limit ? series.dash : data.series[series.name].dash, spanGaps: true,
        points: { show: !series.limit, size: 6 },
      }))),
      hooks: { draw: [(u) => ranges(u, one)], setCursor: [(u) => {
        const at = u.cursor.idx;
        const values = at == null ? [] : u.series.slice(1).map((series, index) => {
          const value = u.data[index + 1][at];
          return value == null ? null : series.label + ": " + yText(value);
        }).filter((text) => text !== null);
        note.textContent = values.length ? xText(u.data[0][at]) + " — " + values.join(", ") : usual;
      }] },
    }, [data.x].concat(one.series.map((series) => series.values)), box);
    return plot;
  }

  // The largest samples of a chart.
  const highest = (one) => one.series.flatMap((series) => series.ranges).filter(Boolean).map((range) => range[1]);

  // Draws a thin line from the least to the largest sample of each point.
  function ranges(u, one) {
    const { left, top, width, height } = u.bbox;
    u.ctx.save();
    u.ctx.beginPath();
    u.ctx.rect(left, top, width, height);
    u.ctx.clip();
    u.ctx.lineWidth = devicePixelRatio;
    for (const series of one.series) {
      u.ctx.strokeStyle = color("--s" + data.series[series.name].color);
      series.ranges.forEach((range, index) => {
        if (range === null) return;
        const x = u.valToPos(data.x[index], "x", true);
        u.ctx.beginPath();
        u.ctx.moveTo(x, u.valToPos(range[0], "y", true));
        u.ctx.lineTo(x, u.valToPos(range[1], "y", true));
        u.ctx.stroke();
      });
    }
    u.ctx.restore();
  }

  // At most as many ticks as have room, each at a measured value.
  function ticks(width) {
    const room = Math.max(2, Math.floor(width / devicePixelRatio / 60));
    const step = Math.ceil(data.x.length / room);
    return data.x.filter((_, index) => index % step === 0);
  }

  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("beforeprint", draw);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    drawn.forEach((plot, index) => {
      const box = document.getElementById(data.charts[index].id);
      plot.setSize({ width: box.clientWidth, height: 250 });
    });
  });

  // A click on a heading sorts its table.
  for (const head of document.querySelectorAll("th[data-column]")) {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const table = head.closest("table");
      const down = head.getAttribute("aria-sort") === "ascending";
      table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => {
        const cell = row.cells[head.cellIndex];
        return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
      };
      const order = (a, b) => {
        const [one, two] = [key(a), key(b)];
        if (typeof one !== typeof two) return typeof one === "number" ? -1 : 1;
        const less = typeof one === "number" ? one - two : one.localeCompare(two);
        return down ? -less : less;
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
    });
  }
})();
