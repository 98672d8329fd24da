// What is taken for what, and which class is recognised least often.

import { h, percent, t } from "./dom.js";
import { classNames } from "./studio.js";

export function weakest(judged) {
  if (!judged.weakest) return null;
  const [label, recall, count] = judged.weakest;
  return h("p", { id: "weakest" }, t("learn.weakest", { name: classNames()[label], recall: percent(recall), count }));
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
