// Draws two rankings side by side. Text of passages, titles and questions only ever becomes text nodes.

/** An element with a class, attributes and children (strings become text). */
export function element(name, { className = "", ...attributes } = {}, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** Passage id → rank. */
export function ranksOf(passages) {
  return new Map(passages.map((passage) => [passage.passage_id, passage.rank]));
}

/**
 * Fills a list with the first `count` passages.
 * @param other the other encoder's ranks (as many as there are `passages`), or null where there is no other
 * @param {"from" | "to"} direction "from": `other` ranked before this list; "to": after it
 * @param known {answers, gold} of the question, empty when nothing is known
 */
export function drawPassages(list, passages, count, other, direction, known) {
  list.replaceChildren(...passages.slice(0, count).map((passage) => drawPassage(passage, other, direction, known)));
}

function drawPassage(passage, other, direction, known) {
  const isGold = known.gold.includes(passage.passage_id);
  const facts = element("p", { className: "facts" }, element("span", { className: "rank" }, `${passage.rank}.`));
  if (other !== null) facts.append(drawMove(passage.rank, other.get(passage.passage_id), other.size, direction));
  if (isGold) facts.append(element("span", { className: "badge gold" }, "★ gold"));
  facts.append(element("span", { className: "score", title: "inner product of unit vectors" }, passage.score.toFixed(3)));
  const place = element("p", { className: "place" }, passage.title ? `${passage.title} · ${passage.doc_id}` : passage.doc_id);
  return element("li", { className: isGold ? "passage gold" : "passage" }, facts, place, drawText(passage.text, known.answers));
}

function drawMove(rank, there, depth, direction) {
  const badge = (kind, sign, words) =>
    element("span", { className: `badge ${kind}` }, element("span", { "aria-hidden": "true" }, sign), element("span", { className: "hint" }, words));
  if (direction === "from") {
    if (there === undefined) return badge("up", "new", `new: not among the base encoder's first ${depth}`);
    if (there === rank) return badge("same", "=", "same rank with the base encoder");
    return there > rank ? badge("up", `▲ from ${there}`, `up from ${there}`) : badge("down", `▼ from ${there}`, `down from ${there}`);
  }
  if (there === undefined) return badge("down", "gone", `gone: not among the adapted encoder's first ${depth}`);
  if (there === rank) return badge("same", "=", "same rank with the adapted encoder");
  return there < rank ? badge("up", `▲ to ${there}`, `rises to ${there}`) : badge("down", `▼ to ${there}`, `falls to ${there}`);
}

function drawText(text, answers) {
  const pieces = marked(text, answers);
  // What holds an answer is shown whole.
  return element("p", { className: pieces.length > 1 ? "text" : "text cut" }, ...pieces);
}

/** Gives every passage of a visible list whose text is cut a button that shows all of it. */
export function offerWholeTexts(list) {
  for (const paragraph of list.querySelectorAll(".text.cut")) {
    if (paragraph.scrollHeight <= paragraph.clientHeight) continue;
    const more = element("button", { type: "button", className: "more", "aria-expanded": "false" }, "Show all");
    more.addEventListener("click", () => {
      const cut = paragraph.classList.toggle("cut");
      more.setAttribute("aria-expanded", String(!cut));
      more.textContent = cut ? "Show all" : "Show less";
    });
    paragraph.after(more);
  }
}

/** The text in pieces, with every occurrence of an answer in a <mark>; case and white space do not count. */
export function marked(text, answers) {
  const patterns = answers.map((answer) => answer.trim()).filter(Boolean).sort((a, b) => b.length - a.length).map(patternOf);
  if (patterns.length === 0) return [text];
  // A capturing split: odd pieces are the matches.
  const pieces = text.split(new RegExp(`((?<![\\p{L}\\p{N}])(?:${patterns.join("|")})(?![\\p{L}\\p{N}]))`, "giu"));
  return pieces.map((piece, i) => (i % 2 ? element("mark", {}, piece) : piece));
}

function patternOf(answer) {
  return answer.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&").replace(/\s+/g, "\\s+");
}

/** What changed, in a sentence or two. */
export function summary(base, adapted, count, known) {
  const before = ranksOf(base), after = ranksOf(adapted);
  const depth = base.length;
  const sentences = [];
  if (known.gold.length > 0) {
    const best = (ranks) => Math.min(...known.gold.map((id) => ranks.get(id) ?? Infinity));
    const say = (rank) => (rank === Infinity ? `not among the first ${depth}` : `rank ${rank}`);
    sentences.push(`Best gold passage: ${say(best(before))} with the base encoder, ${say(best(after))} with the adapted one.`);
  }
  const entered = adapted.slice(0, count).filter((passage) => (before.get(passage.passage_id) ?? Infinity) > count).length;
  const size = Math.min(count, adapted.length);
  sentences.push(entered ? `${entered} of the first ${size} passages changed.` : `The first ${size} passages are the same.`);
  return sentences.join(" ");
}
