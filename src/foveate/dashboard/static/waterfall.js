// The list of the slowest requests; each opens to its waterfall. What lies on the critical path is solid, bold, and marked with a star.
import { amount, bytes, make, ms, words } from "./format.js";

const FOUND = { encoder_cache: "in the encoder cache", processor_cache: "in the processor cache", in_flight: "shared with another request" };
const BYTES = new Set(["media_bytes", "fetch_bytes"]);

function bar(one, window) {
  const at = (value) => `${window > 0 ? Math.min(100, (value / window) * 100) : 0}%`;
  return make(
    "div",
    { class: one.critical ? "bar critical" : "bar", "data-stage": one.stage, title: `${one.stage}: from ${ms(one.start_ms)}, ${ms(one.ms)}` },
    make("span", { class: "name" }, one.critical ? `★ ${one.stage}` : one.stage),
    make("span", { class: "track" }, make("i", { "--x": at(one.start_ms), "--w": at(one.ms), "--c": `var(--${one.stage})` })),
    make("span", { class: "ms" }, ms(one.ms)),
  );
}

function owner(request, item) {
  if (item === null) return "request";
  const host = request.hosts[item] ? ` from ${request.hosts[item]}` : "";
  const found = request.found[item] ? `, ${FOUND[request.found[item]]}` : "";
  return `item ${item}${host}${found}`;
}

function facts(request) {
  const own = Object.entries(request.facts).map(([name, value]) => {
    const text = BYTES.has(name) ? bytes(value) : name.endsWith("_ms") ? ms(value) : amount(value);
    return make("span", {}, `${words(name.replace(/_ms$/, ""))} ${text}`);
  });
  const who = [["model", request.model], ["tenant", request.tenant], ["tier", request.tier]].filter(([, value]) => value);
  return make("p", { class: "facts" }, ...who.map(([name, value]) => make("span", {}, `${name} ${value}`)), ...own);
}

function waterfall(request) {
  const rows = [make("div", { class: "axis" }, make("span", {}, "0"), make("span", {}, ms(request.window_ms)))];
  let before = "none yet";
  for (const one of request.bars) {
    if (one.item !== before) rows.push(make("div", { class: "owner" }, owner(request, one.item)));
    before = one.item;
    rows.push(bar(one, request.window_ms));
  }
  const sum = `★ critical path: ${request.ttft_ms === null ? "until the end" : "time to first token"} ${ms(request.ttft_ms ?? request.total_ms)} = `;
  rows.push(make("p", { class: "facts" }, `${sum}its stages + unattributed ${ms(request.unattributed_ms)}`));
  if (request.items_omitted) rows.push(make("p", { class: "facts" }, `${request.items_omitted} more items, ready before these, are not kept`));
  return make("div", { class: "waterfall" }, ...rows, facts(request));
}

function entry(request) {
  const answered = request.outcome === "answered";
  const ending = answered ? null : make("span", { class: "bad" }, request.error ?? request.outcome);
  const carried = ["image", "video"].filter((name) => request.facts[`${name}s`]).map((name) => {
    const number = request.facts[`${name}s`];
    return `${number} ${number === 1 ? name : `${name}s`}`;
  });
  const details = make(
    "details",
    { "data-id": request.id },
    make(
      "summary",
      {},
      make("b", {}, ms(request.ttft_ms ?? request.total_ms)),
      make("span", {}, make("i", { class: "swatch", "--c": `var(--${request.stage})` }), request.stage),
      ending,
      make("span", { class: "quiet" }, [...carried, new Date(request.time).toLocaleTimeString()].join(", ")),
      make("span", { class: "id" }, request.id),
    ),
  );
  // Made when it is looked at: most never are.
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) details.append(waterfall(request));
  });
  return details;
}

export function slowest(target, requests) {
  const wanted = requests.map((request) => request.id).join("\n");
  if (target.dataset.shown === wanted) return;
  const before = new Map([...target.querySelectorAll("details")].map((each) => [each.dataset.id, each]));
  target.dataset.shown = wanted;
  // What a reader has opened stays open, and the same element.
  target.replaceChildren(...requests.map((request) => before.get(request.id) ?? entry(request)));
  if (!requests.length) target.append(make("p", { class: "empty" }, "None in the last half hour."));
}
