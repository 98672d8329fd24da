// A gallery of thousands of thumbnails: only the rows in view exist in the document.

import { fill, h, percent, t } from "./dom.js";

const CELL = 148; // least width of a cell, in pixels
const FOOT = 46; // height of the words below a thumbnail

export class Gallery {
  constructor({ label, open }) {
    this.open = open;
    this.rows = [];
    this.data = null;
    this.classes = [];
    this.cells = new Map();
    this.focused = 0;
    this.inner = h("div.gallery-inner", {});
    this.element = h("div.gallery", { role: "listbox", "aria-label": label, tabIndex: 0, onkeydown: (event) => this.key(event) }, this.inner);
    this.element.addEventListener("scroll", () => this.draw(), { passive: true });
    this.element.addEventListener("focus", () => this.mark(this.focused));
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  // `rows` are the images to show, in order; `data` the columns of /api/images.
  show(rows, data, classes) {
    Object.assign(this, { rows, data, classes });
    this.focused = Math.min(this.focused, Math.max(0, rows.length - 1));
    for (const cell of this.cells.values()) cell.remove();
    this.cells.clear();
    fill(this.inner);
    if (!rows.length) this.inner.append(h("p.welcome", {}, t(data.names.length ? "gallery.none" : "gallery.empty")));
    this.draw();
  }

  measure() {
    const width = this.element.clientWidth;
    const across = Math.max(1, Math.floor(width / CELL));
    const side = Math.floor(width / across);
    return { across, side, tall: side + FOOT };
  }

  draw() {
    if (!this.data || !this.element.clientWidth) return;
    const { across, side, tall } = this.measure();
    this.inner.style.height = this.rows.length ? `${Math.ceil(this.rows.length / across) * tall}px` : "auto";
    const first = Math.max(0, Math.floor(this.element.scrollTop / tall) - 1) * across;
    const last = Math.min(this.rows.length, (Math.ceil((this.element.scrollTop + this.element.clientHeight) / tall) + 1) * across);
    for (const [position, cell] of this.cells)
      if (position < first || position >= last || cell.side !== side) {
        cell.remove();
        this.cells.delete(position);
      }
    for (let position = first; position < last; position++) {
      if (this.cells.has(position)) continue;
      const cell = this.cell(position);
      cell.side = side;
      cell.style.width = `${side}px`;
      cell.style.height = `${tall}px`;
      cell.style.transform = `translate(${(position % across) * side}px, ${Math.floor(position / across) * tall}px)`;
      this.cells.set(position, cell);
      this.inner.append(cell);
    }
  }

  cell(position) {
    const row = this.rows[position];
    const { data, classes } = this;
    const bad = data.errors[row];
    const name = data.names[row].split("/").pop();
    const label = data.label[row] >= 0 ? classes[data.label[row]] : null;
    const state = data.state[row];
    const guess = data.predicted?.[row] >= 0 && !bad ? classes[data.predicted[row]] : null;
    const words = [];
    if (label) words.push(h("span.tag.given", {}, label));
    else if (state) words.push(h("span.tag.other", {}, t(`state.${state}`)));
    else if (guess !== null && guess !== undefined) words.push(h("span.tag.guess", {}, `${guess} ${percent(data.probability[row])}`));
    if (bad) words.push(h("span.tag.bad", {}, t("gallery.unreadable")));
    else if (data.copies[row] !== undefined) words.push(h("span.tag.other", {}, t("gallery.copy")));
    if (data.unfamiliar?.[row]) words.push(h("span.tag.warn", {}, t("gallery.unfamiliar")));
    else if (!label && !state && data.plausible && guess && data.plausible[row] !== 1) words.push(h("span.tag.warn", {}, t("gallery.several", { count: data.plausible[row] })));
    const thumb = bad
      ? h("span.broken", { "aria-hidden": "true" }, "?")
      : h("img", { src: `/thumb/${row}`, alt: "", loading: "lazy", decoding: "async" });
    return h(
      "div.cell",
      {
        id: `cell-${position}`,
        role: "option",
        "aria-label": [name, label ?? (state && t(`state.${state}`)) ?? guess ?? ""].filter(Boolean).join(", "),
        "aria-selected": String(position === this.marked), // also when it is drawn again
        title: bad ? `${data.names[row]}: ${bad}` : data.names[row],
        onclick: () => {
          this.focused = position;
          this.open(row, this.rows);
        },
      },
      h("span.thumb", {}, thumb),
      h("span.words", {}, words.length ? words : h("span.tag.none", {}, name))
    );
  }

  key(event) {
    const { across } = this.measure();
    const page = across * Math.max(1, Math.floor(this.element.clientHeight / this.measure().tall));
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across, PageDown: page, PageUp: -page };
    if (event.key in steps) this.mark(this.focused + steps[event.key]);
    else if (event.key === "Home") this.mark(0);
    else if (event.key === "End") this.mark(this.rows.length - 1);
    else if ((event.key === "Enter" || event.key === " ") && this.rows.length) this.open(this.rows[this.focused], this.rows);
    else return;
    event.preventDefault();
  }

  mark(position) {
    if (!this.rows.length) return;
    this.cells.get(this.focused)?.setAttribute("aria-selected", "false");
    this.focused = this.marked = Math.max(0, Math.min(this.rows.length - 1, position));
    const { across, tall } = this.measure();
    const top = Math.floor(this.focused / across) * tall;
    if (top < this.element.scrollTop) this.element.scrollTop = top;
    if (top + tall > this.element.scrollTop + this.element.clientHeight) this.element.scrollTop = top + tall - this.element.clientHeight;
    this.draw();
    this.cells.get(this.focused)?.setAttribute("aria-selected", "true");
    this.element.setAttribute("aria-activedescendant", `cell-${this.focused}`);
  }
}
