"use strict";
(() => {
  const copy = document.getElementById("copy");
  copy.addEventListener("click", async () => {
    const text = document.getElementById("facts").textContent;
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = "Copied";
    } catch {
      const range = document.createRange();
      range.selectNodeContents(document.getElementById("facts"));
      const selection = window.getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      copy.textContent = "Selected";
    }
  });

  const data = document.getElementById("curves");
  if (!data) return;
  const { failing, curves } = JSON.parse(data.textContent);
  const places = document.querySelectorAll(".chart");
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const charts = [];

  const short = (tick) => {
    if (tick === null) return "";
    const size = Math.abs(tick);
    return size >= 1e5 || (size > 0 && size < 1e-3) ? tick.toExponential(0).replace("+", "") : Number(tick.toPrecision(3)).toString();
  };
  // of a logarithmic axis a few powers of ten; of another one everything
  const powers = (plot, ticks) => {
    if (plot.scales.y.distr !== 3) return ticks;
    const whole = ticks.filter((tick) => Math.abs(Math.log10(tick) - Math.round(Math.log10(tick))) < 1e-6);
    const every = Math.max(1, Math.ceil(whole.length / 6));
    return ticks.map((tick) => whole.indexOf(tick) >= 0 && whole.indexOf(tick) % every === 0 ? tick : null);
  };

  const draw = () => {
    while (charts.length) charts.pop().destroy();
    const ink = color("--dim"), line = color("--line"), bad = color("--bad"), stroke = color("--info");
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    const steps_axis = { ...axis, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 1000000] };
    const failures = {
      hooks: {
        draw: (plot) => {
          const { ctx, bbox } = plot;
          ctx.save();
          ctx.strokeStyle = bad;
          ctx.setLineDash([4, 4]);
          for (const step of failing) {
            const x = plot.valToPos(step, "x", true);
            if (x < bbox.left - 1 || x > bbox.left + bbox.width + 1) continue;
            ctx.beginPath();
            ctx.moveTo(x, bbox.top);
            ctx.lineTo(x, bbox.top + bbox.height);
            ctx.stroke();
          }
          ctx.restore();
        },
      },
    };
    curves.forEach((curve, index) => {
      const place = places[index];
      const positive = curve.values.filter((value) => value !== null && value > 0);
      const span = positive.length ? Math.max(...positive) / Math.min(...positive) : 1;
      const steps = curve.steps.concat(failing.filter((step) => step > curve.steps[curve.steps.length - 1]));
      const values = curve.values.concat(new Array(steps.length - curve.steps.length).fill(null));
      charts.push(new uPlot({
        width: Math.max(place.clientWidth, 200),
        height: 200,
        scales: { x: { time: false }, y: span > 100 && positive.length === curve.values.filter((v) => v !== null).length ? { distr: 3 } : {} },
        series: [{ label: "step" }, { label: curve.title, stroke, width: 1.5, points: { show: curve.values.length < 40 } }],
        axes: [steps_axis, { ...axis, size: 64, filter: powers, grid: { ...axis.grid, filter: powers }, ticks: { ...axis.ticks, filter: powers }, values: (_, ticks) => ticks.map(short) }],
        plugins: [failures],
        legend: { show: true },
      }, [steps, values], place));
    });
  };

  draw();
  let waiting = 0;
  window.addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(draw, 150);
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
