// Asks for the data every few seconds and draws it. The key, where the server has keys, stays in this tab's sessionStorage.
import * as charts from "./charts.js";
import { amount, bytes, list, make, meter, ms, percent, scrolled, words } from "./format.js";
import { slowest } from "./waterfall.js";

const EVERY_MS = 3000;
const ANSWER_MS = 20000;
const SAMPLES_MAX = 600;
const KEY = "foveate-admin-key";
const $ = (selector) => document.querySelector(selector);
const shown = { quantile: 1, paused: false, data: null, samples: [], timer: 0 };

async function fetched() {
  const key = sessionStorage.getItem(KEY);
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  return fetch("dashboard/data", { headers, cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(ANSWER_MS) });
}

async function refresh() {
  clearTimeout(shown.timer);
  let again = true;
  try {
    const reply = await fetched();
    if (reply.status === 401 || reply.status === 403) {
      again = false;
      ask(reply.status);
    } else if (reply.ok) {
      shown.data = await reply.json();
      sample(shown.data);
      draw();
    } else {
      const said = (await reply.json()).error?.message;
      state(said ?? `answers ${reply.status}`, "bad");
    }
  } catch (error) {
    state(error.name === "TimeoutError" ? "does not answer in time" : "cannot be reached", "bad");
    $("#main").classList.add("stale");
    console.info(error);
  }
  if (again && !shown.paused) shown.timer = setTimeout(refresh, document.hidden ? 10 * EVERY_MS : EVERY_MS);
}

function ask(status) {
  const refused = sessionStorage.getItem(KEY) !== null;
  sessionStorage.removeItem(KEY);
  $("#key").hidden = false;
  $("#main").hidden = true;
  $("#key-refused").textContent = refused ? (status === 403 ? "This key has no admin: true." : "This key is not known here.") : "";
  $("#key-text").focus();
}

function state(text, kind) {
  $("#state").textContent = text;
  $("#state").className = `badge ${kind}`;
}

function sample(data) {
  shown.samples.push([data.at, ...data.queues.map((queue) => queue.waiting)]);
  if (shown.samples.length > SAMPLES_MAX) shown.samples.shift();
}

function draw() {
  const { data, quantile } = shown;
  $("#key").hidden = true;
  $("#main").hidden = false;
  $("#main").classList.remove("stale");
  $("#unobserved").hidden = data.observing;
  $("#model").textContent = data.models.join(", ");
  state(data.ready ? "ready" : data.reason || "not ready", data.ready ? "good" : "bad");
  for (const button of document.querySelectorAll("#quantile button")) {
    button.setAttribute("aria-pressed", String(Number(button.dataset.quantile) === quantile));
  }
  const name = `P${Math.round(data.quantiles[quantile] * 100)}`;
  for (const each of document.querySelectorAll(".quantile-name")) each.textContent = `${name}, slots of ${data.slot_seconds} s`;
  $("#ttft .lead").replaceChildren(lead(data, quantile, name));
  charts.ttft($("#ttft .chart"), data, quantile);
  const stages = [...data.stages, "unattributed"];
  for (const modality of ["multimodal", "text"]) {
    const part = data.modalities[modality];
    const box = `#stages-${modality}`;
    if (part.slots.length) charts.stacked($(`${box} .chart`), part.slots, stages, { quantile, seconds: data.slot_seconds });
    $(`${box} .table`).replaceChildren(table(part, stages, quantile));
    slowest($(`#slowest-${modality} .body`), part.slowest);
  }
  queues(data);
  $("#slo .body").replaceChildren(...objectives(data.slo));
  $("#caches .body").replaceChildren(make("div", { class: "cards" }, ...caches(data.caches)));
  $("#refusals .body").replaceChildren(make("div", { class: "cards" }, ...refusals(data)));
}

function lead(data, quantile, name) {
  const of = (modality) => {
    const { whole } = data.modalities[modality];
    return whole.requests ? `${modality} ${ms(whole.series.ttft[quantile])} (${whole.requests})` : `${modality} – (0)`;
  };
  return make("span", {}, make("b", {}, `${of("text")} · ${of("multimodal")}`), make("small", {}, ` ${name} of the last half hour (requests)`));
}

function table(part, stages, quantile) {
  if (!part.whole.requests) return make("p", { class: "empty" }, "No request reached a first token in the last half hour.");
  const seen = stages.filter((stage) => part.whole.series[stage]);
  const most = seen.reduce((a, b) => (part.whole.series[b][quantile] > part.whole.series[a][quantile] ? b : a));
  const row = (stage) =>
    make(
      "tr",
      { class: stage === most ? "most" : "", "data-stage": stage },
      make("td", {}, make("i", { class: "swatch", "--c": `var(--${stage})` }), stage === most ? `${stage} ◂` : stage),
      ...part.whole.series[stage].map((value) => make("td", {}, ms(value))),
    );
  const head = make("tr", {}, ...["last half hour", "P50", "P95", "P99"].map((text) => make("th", { scope: "col" }, text)));
  const sum = make("tr", {}, make("td", {}, "ttft"), ...part.whole.series.ttft.map((value) => make("td", {}, ms(value))));
  return scrolled(make("table", {}, make("thead", {}, head), make("tbody", {}, ...seen.map(row), sum)));
}

function queues(data) {
  const waiting = data.queues.map((queue, index) => [queue.name, index]).filter(([, index]) => data.queues[index].waiting !== null);
  const columns = waiting.map(([, index]) => shown.samples.map((each) => each[index + 1]));
  charts.lines($("#queues .chart"), shown.samples.map((each) => each[0]), columns, waiting.map(([name]) => `waiting: ${name}`));
  const card = (queue) => {
    const figure = queue.unit === "bytes" ? bytes : amount;
    const taken = queue.capacity === null ? figure(queue.taken) : `${figure(queue.taken)} of ${figure(queue.capacity)}`;
    const rows = [...(queue.waiting === null ? [] : [["waiting", amount(queue.waiting)]]), [queue.unit, taken]];
    return make("div", { class: "card" }, make("h3", {}, queue.name), list(rows), queue.capacity ? meter(queue.taken / queue.capacity) : null);
  };
  const waits = ["encoder_queue", "llm_queue"].map((stage) => {
    const of = (modality) => data.modalities[modality].whole.series[stage];
    const row = (modality) => (of(modality) ? [`${modality}, P50 / P95`, `${ms(of(modality)[0])} / ${ms(of(modality)[1])}`] : null);
    const rows = ["text", "multimodal"].map(row).filter((each) => each !== null);
    return make("div", { class: "card" }, make("h3", {}, `wait: ${words(stage)}`), rows.length ? list(rows) : make("p", { class: "empty" }, "none"));
  });
  const memory = Object.entries(data.devices.memory).map(([kind, held]) => [kind, bytes(held)]);
  const held = make("div", { class: "card" }, make("h3", {}, "memory of processes"), list(memory));
  const gpus = Object.entries(data.devices.gpus).map(([number, [share, used, whole]]) => {
    const rows = [["busy", percent(share)], ["memory", `${bytes(used)} of ${bytes(whole)}`]];
    return make("div", { class: "card" }, make("h3", {}, `GPU ${number}`), list(rows), meter(used / whole));
  });
  const upstreams = data.queues.filter((queue) => queue.unit !== "requests" || queue.name !== "servers behind" || queue.waiting || queue.taken);
  $("#queues .body").replaceChildren(make("div", { class: "cards" }, ...waits, ...upstreams.map(card), held, ...gpus));
}

function objectives(slo) {
  const parts = ["text", "multimodal"].map((name) => {
    const part = slo[name];
    if (!part) return make("p", { class: "empty" }, `${name}: no target is set (slo.${name}.ttft_p95_ms, tpot_p95_ms).`);
    const alert = part.alert ? make("span", { class: "badge bad" }, part.alert) : make("span", { class: "badge good" }, "no alert");
    const targets = [["TTFT", part.targets.ttft_p95_ms], ["TPOT", part.targets.tpot_p95_ms]].filter(([, value]) => value !== null);
    const row = ([window, each]) =>
      make(
        "tr",
        {},
        make("td", {}, window),
        make("td", {}, each.requests),
        make("td", {}, percent(each.attainment)),
        make("td", {}, `${each.goodput.toFixed(2)}/s`),
        make("td", { class: each.burn_rate > 1 ? "bad" : "" }, `${each.burn_rate.toFixed(2)} ×`),
      );
    const head = make("tr", {}, ...["window", "requests", "met", "goodput", "burn"].map((text) => make("th", { scope: "col" }, text)));
    const title = make("h3", {}, `${name} `, alert, make("small", {}, ` P95 ${targets.map(([what, value]) => `${what} ≤ ${ms(value)}`).join(", ")}`));
    return make("div", {}, title, scrolled(make("table", {}, make("thead", {}, head), make("tbody", {}, ...Object.entries(part.windows).map(row)))));
  });
  if (!slo.text && !slo.multimodal) return parts;
  return [...parts, make("p", { class: "facts" }, `A burn of 1 × spends exactly the ${percent(slo.budget)} of requests that may miss.`)];
}

function caches(all) {
  const card = (name) => {
    const each = all[name];
    const saved = Object.values(each.saved_ms).reduce((a, b) => a + b, 0);
    const rows = [
      ["hit ratio", percent(each.hit_ratio)],
      ["hits / misses", `${amount(each.hits)} / ${amount(each.misses)}`],
      ["joined in flight", amount(each.shared)],
      ["entries", amount(each.entries)],
      ["bytes", `${bytes(each.bytes)} of ${bytes(each.capacity_bytes)}`],
      ["saved", ms(saved)],
    ];
    return make("div", { class: "card" }, make("h3", {}, `${name} cache`), list(rows), meter(each.capacity_bytes ? each.bytes / each.capacity_bytes : 0));
  };
  const kv = all.kv_prefix;
  const rows = [
    ["tokens found", percent(kv.prompt_tokens ? kv.cached_tokens / kv.prompt_tokens : null)],
    ["requests with any", `${amount(kv.hits)} of ${amount(kv.requests)}`],
    ["cached tokens", `${amount(kv.cached_tokens)} of ${amount(kv.prompt_tokens)}`],
  ];
  return [...["media", "processor", "encoder"].map(card), make("div", { class: "card" }, make("h3", {}, "KV prefix cache (engine's own)"), list(rows))];
}

function refusals(data) {
  const card = (title, counts) => {
    const rows = Object.entries(counts).filter(([, number]) => number).sort((a, b) => b[1] - a[1]).map(([name, number]) => [name, amount(number)]);
    return make("div", { class: "card" }, make("h3", {}, title), rows.length ? list(rows) : make("p", { class: "empty" }, "none"));
  };
  const ended = Object.entries(data.requests).map(([modality, counts]) => card(`requests, ${modality}`, counts));
  return [card("budget refusals, by limit", data.rejections), card("errors, by code", data.errors), card("media fetches", data.fetches), card("URL policy, by rule", data.forbidden), ...ended];
}

$("#quantile").addEventListener("click", (event) => {
  if (event.target.dataset.quantile === undefined) return;
  shown.quantile = Number(event.target.dataset.quantile);
  if (shown.data) draw();
});
$("#pause").addEventListener("click", () => {
  shown.paused = !shown.paused;
  $("#pause").setAttribute("aria-pressed", String(shown.paused));
  $("#pause").textContent = shown.paused ? "Paused" : "Pause";
  if (shown.paused) clearTimeout(shown.timer);
  else refresh();
});
$("#key").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $("#key-text").value.trim());
  $("#key-text").value = "";
  refresh();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => shown.data && draw());
document.addEventListener("visibilitychange", () => !document.hidden && !shown.paused && refresh());
refresh();
