// Small helpers: elements, words, requests. No library.

let words = {};

export async function loadWords() {
  const asked = new URLSearchParams(location.search).get("lang") || navigator.language.slice(0, 2);
  const english = await (await fetch("/static/strings.en.json")).json();
  words = english;
  if (/^[a-z]{2}$/.test(asked) && asked !== "en") {
    const other = await fetch(`/static/strings.${asked}.json`).catch(() => null);
    if (other?.ok) {
      words = { ...english, ...(await other.json()) };
      document.documentElement.lang = asked;
    }
  }
}

// The words of a key, with {name} filled in; a key without words shows itself.
export function t(key, values = {}) {
  return (words[key] ?? key).replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
}

// h("p.note", {title: "x"}, "text", child): texts are always texts, never HTML.
export function h(kind, attributes = {}, ...children) {
  const [tag, ...classes] = kind.split(".");
  const element = document.createElement(tag || "div");
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && !name.startsWith("aria") && name !== "list") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)} %`;

export function fill(target, ...children) {
  target.replaceChildren(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return target;
}

export class Problem extends Error {
  constructor(message, status, body) {
    super(message);
    Object.assign(this, { status, body });
  }
}

async function answered(reply) {
  const body = await reply.json().catch(() => ({}));
  if (!reply.ok) throw new Problem(body.error || t("error.server"), reply.status, body);
  return body;
}

async function reach(path, options) {
  try {
    return await fetch(path, options);
  } catch {
    throw new Problem(t("error.away"), 0, {});
  }
}

export const get = async (path) => answered(await reach(path));
export const post = async (path, value) =>
  answered(
    await reach(path, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(value ?? {}),
    })
  );
// A file as it is, or several in a form, whose header the browser writes itself.
export const send = async (path, body) => {
  const headers = body instanceof FormData ? {} : { "Content-Type": "application/octet-stream" };
  return answered(await reach(path, { method: "POST", headers, body }));
};

export function announce(text) {
  document.querySelector("#announce").textContent = text;
}

// A place to drop files on, which is also a button for the keyboard.
export function dropZone({ id, label, hint, multiple = false, accept = "", taken }) {
  const input = h("input", { type: "file", multiple, accept, tabIndex: -1, "aria-hidden": "true" });
  input.addEventListener("change", () => {
    if (input.files.length) taken([...input.files]);
    input.value = "";
  });
  const button = h("button.drop", { id, type: "button", onclick: () => input.click() }, h("strong", {}, label), h("span", {}, hint));
  const zone = h("div.drop-zone", {}, button, input);
  for (const kind of ["dragenter", "dragover"])
    zone.addEventListener(kind, (event) => {
      event.preventDefault();
      button.classList.add("over");
    });
  for (const kind of ["dragleave", "drop"]) zone.addEventListener(kind, () => button.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files.length) taken([...event.dataTransfer.files]);
  });
  return zone;
}

export function bar(share, kind = "") {
  const inner = h("span", {});
  inner.style.width = `${(100 * share).toFixed(1)}%`;
  return h(`span.bar${kind ? `.${kind}` : ""}`, { "aria-hidden": "true" }, inner);
}
