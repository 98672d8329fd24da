// In which order images are shown, and which of them.

import { h, t } from "./dom.js";

export const SORTS = ["folder", "class", "doubt", "predicted", "time"];
export const FILTERS = ["all", "open", "unsure", "unfamiliar", "labelled", "problems"];

export function sortSelect(changed, names = SORTS, prefix = "sort") {
  const select = h("select", { "aria-label": t(`${prefix}.label`), onchange: changed }, names.map((name) => h("option", { value: name }, t(`${prefix}.${name}`))));
  return { element: h("label.select", {}, h("span", {}, t(`${prefix}.label`)), select), value: () => select.value, select };
}

export function chosen(data, sort, filter) {
  const rows = data.names.map((_, row) => row).filter((row) => passes(data, row, filter));
  const key = {
    folder: () => 0,
    // Given classes before guessed ones, then what is neither.
    class: (row) => (data.label[row] >= 0 ? data.label[row] : 1000 + (data.predicted?.[row] ?? 1000)),
    doubt: (row) => -(data.known[row] ? data.doubt?.[row] ?? 0 : -1),
    predicted: (row) => 1000 * (data.predicted?.[row] ?? 0) - (data.probability?.[row] ?? 0),
    time: (row) => -data.mark[row],
  }[sort];
  return rows.map((row) => [key(row), row]).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(([, row]) => row);
}

function passes(data, row, filter) {
  const open = data.label[row] < 0 && !data.state[row];
  if (filter === "open") return open && !data.errors[row];
  if (filter === "labelled") return data.label[row] >= 0;
  if (filter === "unsure") return open && data.known[row] && (data.plausible ? data.plausible[row] !== 1 : (data.doubt?.[row] ?? 0) > 0.5);
  if (filter === "unfamiliar") return !!data.unfamiliar?.[row];
  if (filter === "problems") return !!data.errors[row] || data.copies[row] !== undefined || !["", "label"].includes(data.state[row]);
  if (filter.startsWith("class:")) return open && data.predicted?.[row] === Number(filter.slice(6));
  return true;
}
