// Elements without markup: text is always text, so nothing a model writes can become HTML.

/**
 * Make an element.
 * @param {string} tag name, with classes after dots: "p.dim"
 * @param {object} props attributes; `on…` are listeners, `dataset`, `value`, `checked`… are set as properties
 * @param {...(Node|string|number|null|undefined|false|Array)} children
 */
export function el(tag, props = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const node = document.createElement(name);
  if (classes.length) node.className = classes.join(" ");
  for (const [key, value] of Object.entries(props ?? {})) setProp(node, key, value);
  add(node, children);
  return node;
}

const AS_PROPERTY = new Set(["value", "checked", "disabled", "hidden", "selected", "open", "indeterminate", "readOnly"]);

function setProp(node, key, value) {
  if (value === null || value === undefined) return;
  if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
  else if (key === "class") node.classList.add(...String(value).split(" ").filter(Boolean));
  else if (key === "dataset") Object.assign(node.dataset, value);
  else if (AS_PROPERTY.has(key)) node[key] = value;
  else if (value === false) node.removeAttribute(key);
  else node.setAttribute(key, value === true ? "" : value);
}

function add(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Replace all children. */
export function fill(node, ...children) {
  node.replaceChildren();
  add(node, children);
  return node;
}

let numbers = 0;
/** An id no other element has. */
export function uid(prefix = "x") {
  numbers += 1;
  return `${prefix}-${numbers}`;
}

/** A labelled control with hint and fault: {node, input, setFault}. `input` needs no id. */
export function field(label, input, { hint = "" } = {}) {
  input.id ||= uid("field");
  const fault = el("span.fault", { id: `${input.id}-fault`, role: "alert" });
  const hintNode = hint ? el("span.hint", { id: `${input.id}-hint` }, hint) : null;
  input.setAttribute("aria-describedby", [hintNode?.id, fault.id].filter(Boolean).join(" "));
  const node = el("div.field", {}, el("label", { for: input.id }, label), input, hintNode, fault);
  return {
    node,
    input,
    setFault(text) {
      fault.textContent = text ?? "";
      input.setAttribute("aria-invalid", text ? "true" : "false");
    },
  };
}

/** A select of [value, label] pairs or plain strings. */
export function select(options, value, props = {}) {
  return el("select", props, options.map((option) => {
    const [key, label] = Array.isArray(option) ? option : [option, option];
    return el("option", { value: key, selected: key === value }, label);
  }));
}

/** Numbers for people; a dash for what is not known. */
export const fmt = {
  fixed: (x, digits = 1) => (x === null || x === undefined || !Number.isFinite(x) ? "–" : x.toFixed(digits)),
  percent: (x) => (x === null || x === undefined ? "–" : `${Math.round(100 * x)} %`),
  bytes(x) {
    if (x === null || x === undefined) return "–";
    const units = ["B", "kB", "MB", "GB", "TB"];
    let at = 0;
    while (x >= 1000 && at < units.length - 1) { x /= 1000; at += 1; }
    return `${at && x < 100 ? x.toFixed(1) : Math.round(x)} ${units[at]}`;
  },
  seconds: (x) => (x === null || x === undefined ? "–" : x < 1 ? `${Math.round(x * 1000)} ms` : `${x.toFixed(1)} s`),
  count: (x) => (x === null || x === undefined ? "–" : x.toLocaleString("en")),
};

/** Offer text or a Blob as a file. */
export function save(name, content, type = "application/json") {
  const blob = content instanceof Blob ? content : new Blob([content], { type });
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
