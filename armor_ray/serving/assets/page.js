// Wires the page: the two tabs, the question box, the examples, the token dialog.

import { Problem, call, onTokenNeeded } from "./api.js";
import { drawPassages, element, offerWholeTexts, ranksOf, summary } from "./results.js";

const DEPTH = 20; // passages asked of each encoder, so that a rank can be followed beyond those shown
const NOTHING = { answers: [], gold: [] };
const $ = (id) => document.getElementById(id);
const known = new Map(); // question → {answers, gold}, from the evaluation
let info = null; // what the server says of itself
let running = null; // AbortController of the question being answered

// -- the question ----------------------------------------------------------------------------------------------------------------

async function ask() {
  const query = $("question").value.trim();
  running?.abort();
  if (!query) return fail(new Problem("refused", "Type a question, or choose an example."));
  const mine = (running = new AbortController());
  starting(query);
  try {
    const { encoders } = info ?? (await load());
    // One after the other: together they would share a batch, and the times would say nothing about either.
    const base = "base" in encoders ? await retrieve(query, "base", mine.signal) : null;
    const adapted = await retrieve(query, "adapted", mine.signal);
    show(query, base, adapted);
  } catch (error) {
    if (error.name !== "AbortError") fail(error);
  } finally {
    if (running === mine) $("columns").removeAttribute("aria-busy");
  }
  return undefined;
}

/** How many passages each encoder is asked for. */
function depth() {
  return Math.min(DEPTH, info.passages, info.limits.max_k);
}

async function retrieve(query, encoder, signal) {
  const { value, milliseconds } = await call("v1/retrieve", { body: { query, k: depth(), encoder }, signal });
  return { ...value.results[0], encoder: value.encoder, partial: value.partial, milliseconds };
}

function starting(query) {
  $("problem").hidden = true;
  $("status").textContent = "Searching …";
  $("columns").setAttribute("aria-busy", "true");
  for (const example of document.querySelectorAll(".example")) {
    example.setAttribute("aria-pressed", String(example.dataset.question === query));
  }
}

function show(query, base, adapted) {
  const count = Number($("count").value);
  const about = known.get(query) ?? NOTHING;
  drawPassages($("adapted-passages"), adapted.passages, count, base && ranksOf(base.passages), "from", about);
  $("adapted-facts").textContent = facts(adapted);
  if (base) {
    drawPassages($("base-passages"), base.passages, count, ranksOf(adapted.passages), "to", about);
    $("base-facts").textContent = facts(base);
    $("status").textContent = summary(base.passages, adapted.passages, count, about);
  } else {
    $("base-passages").replaceChildren(element("li", { className: "problem" }, "This server holds no base encoder to compare with (its argument compare is false)."));
    $("base-facts").textContent = "";
    $("status").textContent = "Adapted results only.";
  }
  if (adapted.partial || base?.partial) $("status").append(" A part of the index did not answer: its passages are missing.");
  if (adapted.truncated) $("status").append(" The question is longer than the encoder reads and was cut.");
  $("columns").hidden = false;
  offerWholeTexts($("columns"));
  if (matchMedia("(max-width: 60rem)").matches) $("examples").open = false;
}

function facts(answer) {
  return `${answer.encoder} · ${answer.milliseconds.toFixed(0)} ms round trip`;
}

function fail(error) {
  if (!(error instanceof Problem)) throw error;
  $("status").textContent = "";
  $("columns").hidden = true;
  $("problem").replaceChildren(error.message);
  if (error.kind !== "refused") {
    const button = element("button", { type: "button" }, "Try again");
    button.addEventListener("click", ask);
    $("problem").append(button);
  }
  $("problem").hidden = false;
}

// -- examples --------------------------------------------------------------------------------------------------------------------

/** What the server says of itself, then its examples; throws the Problem that it met. */
async function load() {
  try {
    info = (await call("info")).value;
    $("served").textContent = `${info.encoder} over ${info.passages.toLocaleString("en")} passages`;
  } catch (error) {
    $("served").textContent = error.message;
    $("examples-note").textContent = "No examples yet.";
    throw error;
  }
  await loadExamples();
  return info;
}

async function loadExamples() {
  try {
    drawExamples((await call("v1/examples")).value);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    $("examples-note").textContent = `No examples: ${error.message}`;
  }
}

function drawExamples({ absent, method, depth: ranked, helped, hurt }) {
  if (absent || helped.length + hurt.length === 0) {
    $("examples-note").textContent = `No examples: ${absent || `${method} changed no gold passage's rank.`}`;
    return;
  }
  $("examples-note").textContent = `Test questions where ${method} moved the best gold passage most: its rank before → after, – beyond ${ranked}.`;
  const list = $("examples-list");
  for (const [title, examples] of [["Adaptation helped", helped], ["Adaptation hurt", hurt]]) {
    list.append(element("h3", {}, title));
    list.append(...(examples.length > 0 ? examples.map(drawExample) : [element("p", { className: "soft" }, "none")]));
  }
  list.hidden = false;
  list.querySelector(".example").tabIndex = 0;
  list.addEventListener("keydown", (event) => moveFocus(event, [...list.querySelectorAll(".example")], "ArrowDown", "ArrowUp"));
}

function drawExample({ question, answers, gold, before, after }) {
  known.set(question, { answers, gold });
  const say = (rank) => (rank === null ? "–" : String(rank));
  const better = (after ?? Infinity) < (before ?? Infinity);
  const move = element("span", { className: better ? "up" : "down" }, `${say(before)} → ${say(after)}`);
  const button = element("button", { type: "button", className: "example", tabindex: "-1", "aria-pressed": "false" }, element("span", {}, question), move);
  button.dataset.question = question;
  button.addEventListener("click", () => {
    $("question").value = question;
    ask();
  });
  return button;
}

/** Moves focus, and with it the one tab stop, through a group of buttons. */
function moveFocus(event, buttons, next, previous) {
  const at = buttons.indexOf(document.activeElement);
  const to = { [next]: at + 1, [previous]: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
  if (to === undefined || at < 0) return null;
  event.preventDefault();
  const target = buttons[(to + buttons.length) % buttons.length];
  for (const button of buttons) button.tabIndex = button === target ? 0 : -1;
  target.focus();
  return target;
}

// -- tabs ------------------------------------------------------------------------------------------------------------------------

const tabs = [...document.querySelectorAll('[role="tab"]')];

function select(tab) {
  for (const other of tabs) {
    const isChosen = other === tab;
    other.setAttribute("aria-selected", String(isChosen));
    other.tabIndex = isChosen ? 0 : -1;
    $(other.getAttribute("aria-controls")).hidden = !isChosen;
  }
  if (tab.id === "tab-report") loadReport();
}

async function loadReport() {
  const panel = $("panel-report");
  if (panel.querySelector("iframe")) return;
  $("report-status").textContent = "Loading the report …";
  try {
    const { value } = await call("v1/report", { text: true });
    // An empty sandbox: no scripts, an origin of its own.
    panel.append(element("iframe", { sandbox: "", title: "Evaluation report", srcdoc: value, tabindex: "0" }));
    $("report-status").textContent = "";
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    $("report-status").textContent = error.status === 404 ? "This workspace has no evaluation report." : error.message;
  }
}

// -- token -----------------------------------------------------------------------------------------------------------------------

let asking = null; // one dialog, however many requests wait for it

function askReader(refused) {
  asking ??= new Promise((resolve) => {
    $("token").value = "";
    $("token-refused").hidden = !refused;
    $("token-dialog").returnValue = "";
    $("token-dialog").addEventListener("close", () => resolve($("token-dialog").returnValue === "use" ? $("token").value.trim() : null), { once: true });
    $("token-dialog").showModal();
  }).finally(() => {
    $("token").value = "";
    asking = null;
  });
  return asking;
}

// -- start -----------------------------------------------------------------------------------------------------------------------

function start() {
  onTokenNeeded(askReader);
  $("token-cancel").addEventListener("click", () => $("token-dialog").close());
  $("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  $("count").addEventListener("change", () => $("columns").hidden || ask());
  for (const tab of tabs) tab.addEventListener("click", () => select(tab));
  tabs[0].parentElement.addEventListener("keydown", (event) => {
    const tab = moveFocus(event, tabs, "ArrowRight", "ArrowLeft");
    if (tab) select(tab);
  });
  load().catch((error) => {
    if (!(error instanceof Problem)) throw error; // a Problem stands on the page already
  });
}

start();
