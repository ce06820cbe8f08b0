// Talks to the server that this page came from. What goes wrong becomes a Problem with a sentence for the reader.

export class Problem extends Error {
  /** @param {string} kind "offline" | "token" | "busy" | "refused" | "failed" @param {string} message @param {number} status HTTP status, 0 without one */
  constructor(kind, message, status = 0) {
    super(message);
    this.kind = kind;
    this.status = status;
  }
}

let token = null; // in memory only: nothing that outlives this page may hold it
let askForToken = async () => null;

/** Sets who asks the reader for a token: a function (refused: boolean) => Promise<string | null>. */
export function onTokenNeeded(ask) {
  askForToken = ask;
}

/** POSTs `body`, or GETs without one. Returns {value, milliseconds}: the parsed JSON (or text) and the round trip as this page saw it. */
export async function call(path, { body, signal, text = false } = {}) {
  for (let refused = false; ; refused = true) {
    const started = performance.now();
    const response = await send(path, body, signal);
    if (response.ok) {
      const value = await read(response, text);
      return { value, milliseconds: performance.now() - started };
    }
    if (response.status !== 401) throw await problemOf(response);
    token = await askForToken(refused);
    if (token === null) throw new Problem("token", "This server answers only with a bearer token.", 401);
  }
}

async function send(path, body, signal) {
  const headers = {};
  if (token !== null) headers.authorization = `Bearer ${token}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const init = { method: body === undefined ? "GET" : "POST", headers, body: body === undefined ? undefined : JSON.stringify(body), signal };
  try {
    return await fetch(path, init);
  } catch (error) {
    throw lost(error);
  }
}

async function read(response, text) {
  try {
    return await (text ? response.text() : response.json());
  } catch (error) {
    throw lost(error);
  }
}

function lost(error) {
  if (error.name === "AbortError") return error;
  return new Problem("offline", navigator.onLine ? "The server cannot be reached." : "This device is offline.");
}

async function problemOf(response) {
  const said = await response.json().then((answer) => answer.error.message, () => "");
  const { status } = response;
  if (status === 503 || status === 429) {
    const seconds = Number(response.headers.get("retry-after"));
    const when = seconds > 0 ? ` Try again in ${seconds} s.` : " Try again in a moment.";
    return new Problem("busy", (status === 503 ? "The server is busy." : "Too many requests.") + when, status);
  }
  if (status === 413) return new Problem("refused", `The question is too long (${said}).`, status);
  if (status >= 500) return new Problem("failed", `The server failed (status ${status}).`, status);
  return new Problem("refused", said || `The server refused (status ${status}).`, status);
}
