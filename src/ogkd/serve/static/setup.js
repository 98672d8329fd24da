// Step 1: where the images are, what is wrong with them, and what the classes are.

import { dropZone, fill, get, h, post, send, t } from "./dom.js";
import { Gallery } from "./gallery.js";
import { openDetail } from "./detail.js";
import { classNames, shared } from "./studio.js";
import { chosen, sortSelect } from "./order.js";

// Where file names say which patient an image is of: the first group of a pattern.
const PATIENTS = { none: "", folder: "([^/]+)/[^/]*$", underscore: "([^/_]+)_[^/]*$", dash: "([^/-]+)-[^/]*$" };

export function setupStep(refresh) {
  const status = h("div.message", { role: "status" });
  let fading = 0;
  const say = (text, bad = false) => {
    clearTimeout(fading);
    fill(status, text ? h(bad ? "div.error" : "div.notice", {}, text) : []);
    if (!bad) fading = setTimeout(() => fill(status), 8000);
  };
  const counts = h("p.counts", {});
  const gallery = new Gallery({ label: t("gallery.label"), open: (row, rows) => openDetail(row, rows, refresh) });
  const sort = sortSelect(() => update());
  const drop = dropZone({
    id: "add-images",
    label: t("setup.drop"),
    hint: t("setup.drop.hint"),
    multiple: true,
    taken: async (files) => {
      for (const [position, file] of files.entries()) {
        say(t("setup.copying", { name: file.name, number: position + 1, all: files.length }));
        const last = position === files.length - 1 ? 1 : 0;
        if (!(await attempt(() => send(`/api/upload?last=${last}&name=${encodeURIComponent(file.name)}`, file), ""))) return;
      }
      say(t("setup.copied", { count: files.length }));
    },
  });
  async function attempt(work, done) {
    try {
      await work();
      await refresh({ force: true });
      if (done !== undefined) say(done);
      return true;
    } catch (error) {
      say(error.message, true);
      return false;
    }
  }

  const patients = h("span.count", { role: "status" });
  const patient = h(
    "select",
    { id: "patient", onchange: () => attempt(() => post("/api/settings", { patient: patient.value || null })) },
    Object.entries(PATIENTS).map(([name, pattern]) => h("option", { value: pattern }, t(`patient.${name}`)))
  );

  function drawPatient(state) {
    const value = state.patient ?? "";
    if (![...patient.options].some((item) => item.value === value)) patient.append(h("option", { value }, t("patient.own", { pattern: value })));
    if (document.activeElement !== patient) patient.value = value;
    patients.textContent = state.patients === null ? "" : t("patient.count", { count: state.patients, images: state.images });
  }

  const editor = h("div.class-list", {});
  const save = h("button.main-button", { type: "submit", id: "save-classes" }, t("classes.save"));
  const classes = h(
    "form.classes-form",
    {
      onsubmit: async (event) => {
        event.preventDefault();
        await saveClasses();
      },
    },
    editor,
    h("div.row", {}, h("button.button", { type: "button", id: "add-class", onclick: () => addRow({ name: "", texts: [], normal: false, labels: 0 }, true) }, t("classes.add")), save)
  );

  const onward = h("button.main-button.onward", { type: "button", id: "start-labelling", onclick: () => document.querySelector("#tab-label").click() }, t("setup.onward"));

  function addRow(item, focus = false) {
    const number = editor.children.length + 1;
    const name = h("input", { type: "text", value: item.name, placeholder: t("classes.name.example"), "aria-label": t("classes.name", { number }), maxLength: 200 });
    const normal = h("input", { type: "checkbox", checked: item.normal });
    const texts = h("textarea", { rows: 4, value: item.texts.join("\n"), "aria-label": t("classes.texts", { number }), placeholder: t("classes.texts.example") });
    const suggest = h(
      "button.quiet",
      {
        type: "button",
        onclick: async () => {
          const reply = await get(`/api/texts?name=${encodeURIComponent(name.value.trim() || "finding")}`);
          texts.value = reply.texts.join("\n");
        },
      },
      t("classes.texts.suggest")
    );
    const row = h(
      "fieldset.class-row",
      {},
      h("legend.unseen", {}, item.name || t("classes.new")),
      h("span.key", { "aria-hidden": "true" }, number < 10 ? String(number) : ""),
      name,
      h("label.normal", { title: t("classes.normal.help") }, normal, t("classes.normal")),
      h("span.count", {}, item.labels ? t("classes.count", { count: item.labels }) : ""),
      h("button.quiet.remove", { type: "button", "aria-label": t("classes.remove", { name: item.name }), disabled: item.labels > 0, title: item.labels ? t("classes.remove.used") : "", onclick: () => row.remove() }, "×"),
      h("details", {}, h("summary", {}, t("classes.describe")), h("p.help", {}, t("classes.texts.help")), texts, suggest)
    );
    row.read = () => ({ name: name.value.trim(), normal: normal.checked, texts: texts.value.split("\n").map((text) => text.trim()).filter(Boolean) });
    row.before = item.name;
    editor.append(row);
    if (focus) name.focus();
  }

  async function saveClasses() {
    const rows = [...editor.children].filter((row) => row.read().name);
    const renames = Object.fromEntries(rows.filter((row) => row.before && row.before !== row.read().name).map((row) => [row.before, row.read().name]));
    const ok = await attempt(() => post("/api/classes", { classes: rows.map((row) => row.read()), renames }), t(rows.length < 2 ? "classes.more" : "classes.saved"));
    if (ok) drawClasses();
  }

  function drawClasses() {
    fill(editor);
    const known = shared.state.classes;
    const rows = known.length ? known : [1, 2].map(() => ({ name: "", texts: [], normal: false, labels: 0 }));
    rows.forEach((item) => addRow(item));
  }

  const element = h(
    "div.columns",
    {},
    h(
      "section.side",
      {},
      h("div.card", {}, h("h2", {}, t("setup.images")), counts, drop, h("details", {}, h("summary", {}, t("patient.title")), h("p.help", {}, t("patient.help")), h("label.select", { htmlFor: "patient" }, t("patient.where"), patient), patients)),
      h("div.card", {}, h("h2", {}, t("setup.classes")), h("p.help", {}, t("setup.classes.help")), classes),
      onward,
      status
    ),
    h("section.wide", {}, h("div.row.bar-row", {}, h("h2", {}, t("gallery.title")), sort.element), gallery.element)
  );

  function update() {
    const state = shared.state;
    const parts = [t("setup.count", { count: state.images })];
    if (state.unreadable) {
      const more = state.unreadable - state.unreadable_names.length;
      const first = state.unreadable_names.join(", ");
      const names = more > 0 ? t("setup.unreadable.more", { names: first, count: more }) : first;
      parts.push(t("setup.unreadable", { count: state.unreadable, names }));
    }
    if (state.volumes) parts.push(t("setup.volumes", { count: state.volumes }));
    if (state.copies) parts.push(t("setup.copies", { count: state.copies }));
    if (state.backbone) parts.push(t("setup.backbone", { name: state.backbone }));
    counts.textContent = parts.join(" ");
    if (!editor.children.length) drawClasses();
    drawPatient(state);
    onward.hidden = state.classes.length < 2 || !state.images;
    gallery.show(chosen(shared.images, sort.value(), "all"), shared.images, classNames());
  }

  return { element, update };
}
