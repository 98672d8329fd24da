// Two small charts in SVG and HTML: how accuracy grows, and what is taken for what.

import { h, percent, t } from "./dom.js";

const NS = "http://www.w3.org/2000/svg";

function s(tag, attributes, ...children) {
  const element = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function curveChart(points) {
  const [wide, tall, left, low] = [320, 150, 34, 22];
  const most = points[points.length - 1].labels;
  const x = (labels) => left + ((wide - left - 8) * labels) / most;
  const y = (share) => 8 + (tall - low - 8) * (1 - share);
  const line = points.map((point) => `${x(point.labels)},${y(point.accuracy)}`).join(" ");
  const band = [...points.map((point) => `${x(point.labels)},${y(point.high)}`), ...[...points].reverse().map((point) => `${x(point.labels)},${y(point.low)}`)].join(" ");
  const last = points[points.length - 1];
  const words = t("learn.curve.alt", { first: points[0].labels, low: percent(points[0].accuracy), last: last.labels, high: percent(last.accuracy) });
  const grid = [0, 0.5, 1].flatMap((share) => [
    s("line", { x1: left, x2: wide - 8, y1: y(share), y2: y(share), class: "grid" }),
    s("text", { x: left - 5, y: y(share) + 4, "text-anchor": "end" }, percent(share)),
  ]);
  const ends = [points[0].labels, most].map((labels) => s("text", { x: x(labels), y: tall - 5, "text-anchor": labels === most ? "end" : "start" }, String(labels)));
  return s(
    "svg",
    { viewBox: `0 0 ${wide} ${tall}`, class: "curve", role: "img", "aria-label": words },
    ...grid,
    s("polygon", { points: band, class: "band" }),
    s("polyline", { points: line, class: "line" }),
    s("circle", { cx: x(last.labels), cy: y(last.accuracy), r: 3.5, class: "dot" }),
    ...ends,
    s("text", { x: (left + wide) / 2, y: tall - 5, "text-anchor": "middle" }, t("learn.curve.x"))
  );
}

export function confusionTable(counts, names) {
  const rows = counts.map((row) => row.reduce((sum, point) => sum + point, 0));
  return h(
    "div.scroll",
    {},
    h(
      "table.confusion",
      {},
      h("caption", {}, t("confusion.caption")),
      h("thead", {}, h("tr", {}, h("td"), names.map((name) => h("th", { scope: "col", title: name }, name)))),
      h(
        "tbody",
        {},
        counts.map((row, given) => h(
          "tr",
          {},
          h("th", { scope: "row" }, names[given]),
          row.map((count, predicted) => {
            const cell = h(given === predicted ? "td.right" : "td", {}, count ? String(count) : "·");
            cell.style.setProperty("--share", String(rows[given] ? count / rows[given] : 0));
            return cell;
          })
        ))
      )
    )
  );
}
