// Figures as people read them, and elements made of text only: nothing that came from the server is ever read as markup.

export function ms(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 10000) return `${(value / 1000).toFixed(1)} s`;
  if (value >= 1000) return `${(value / 1000).toFixed(2)} s`;
  return `${value >= 100 ? value.toFixed(0) : value >= 1 ? value.toFixed(1) : value.toFixed(2)} ms`;
}

export function amount(value) {
  if (value === null || value === undefined) return "–";
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (value >= size) return `${(value / (unit === "k" ? 1e3 : size)).toFixed(1)} ${unit}`;
  }
  return Number.isInteger(value) ? String(value) : value.toFixed(2);
}

export function bytes(value) {
  for (const [power, unit] of [[30, "GiB"], [20, "MiB"], [10, "KiB"]]) {
    if (value >= 2 ** power) return `${(value / 2 ** power).toFixed(1)} ${unit}`;
  }
  return `${value} B`;
}

export function percent(value) {
  return value === null || value === undefined ? "–" : `${(value * 100).toFixed(1)} %`;
}

export function words(name) {
  return name.replaceAll("_", " ");
}

export function make(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null).map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

export function list(pairs) {
  return make("dl", {}, ...pairs.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

export function meter(share) {
  return make("div", { class: "meter" }, make("i", { "--w": `${Math.min(100, Math.max(0, share * 100))}%` }));
}

export function scrolled(table) {
  return make("div", { class: "scroll" }, table);
}
