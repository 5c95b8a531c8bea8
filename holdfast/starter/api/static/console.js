// The console: one page, four views, chosen by the part of the address after `#`.

import { html, render, useContext, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact.js";
import { Holdfast, isTemporary } from "./client.js";
import { splitCheckpoint } from "./moment.js";
import { RunView } from "./run.js";
import { Server, useRefreshed } from "./server.js";
import { InboxView, RunsView, StartView } from "./views.js";

// Not localStorage: a token is gone when the tab is closed.
const TOKEN = "holdfast.token";
const VIEWS = { inbox: "Inbox", runs: "Runs", start: "Start" };

function App() {
  const [view, argument] = useHash();
  // Another moment of the same run is the same page.
  const [runId, seq] = splitCheckpoint(argument);
  const [token, setToken] = useState(sessionStorage.getItem(TOKEN));
  const [wanted, setWanted] = useState(false);
  const [lost, setLost] = useState(false);
  const [waiting, setWaiting] = useState(0);
  const settings = useSettings();
  const server = useMemo(() => {
    const failed = (error) => {
      if (error.status === 401) setWanted(true);
      else setLost(isTemporary(error) && error.status !== 429);
    };
    return { holdfast: new Holdfast({ token }), failed, reached: () => setLost(false), gone: new Set() };
  }, [token]);
  const main = useRef(null);
  const begun = useRef(false);
  useEffect(() => {
    document.title = `${waiting ? `(${waiting}) ` : ""}${VIEWS[view] ?? "Run"} – Holdfast`;
  }, [view, waiting]);
  useEffect(() => {
    // The keyboard goes where the eyes go; but not when the page has just been opened.
    if (begun.current) main.current.querySelector("h1")?.focus();
    begun.current = true;
  }, [view, runId]);
  const give = (text) => {
    sessionStorage.setItem(TOKEN, text);
    setToken(text);
    setWanted(false);
  };
  const skip = (event) => {
    event.preventDefault();
    main.current.focus();
  };
  const place = `${view} ${runId} ${token}`;
  return html`
    <${Server.Provider} value=${server}>
      <a class="skip-link" href="#main" onClick=${skip}>To the content</a>
      <${Header} view=${view} waiting=${waiting} />
      ${view !== "inbox" && !wanted && html`<${Count} onCount=${setWaiting} />`}
      <main id="main" tabindex="-1" ref=${main}>
        <p class=${lost ? "notice lost" : "hidden"} role="status">
          ${lost && "The server does not answer. Trying again; nothing is lost."}
        </p>
        ${wanted
          ? html`<${TokenForm} wrong=${token !== null} onToken=${give} />`
          : html`<${View} key=${place} ...${{ view, runId, seq, settings }} onCount=${setWaiting} />`}
      </main>
    <//>
  `;
}

/** How many questions are open, where they are not shown. */
function Count({ onCount }) {
  const { holdfast } = useContext(Server);
  const listed = useRefreshed(() => holdfast.inbox({ limit: 200 }), 15_000);
  useEffect(() => listed.value && onCount(listed.value.length), [listed.value]);
  return null;
}

function View({ view, runId, seq, settings, onCount }) {
  if (view === "run") return html`<${RunView} ...${{ runId, seq, settings }} />`;
  if (view === "runs") return html`<${RunsView} />`;
  if (view === "start") return html`<${StartView} />`;
  return html`<${InboxView} onCount=${onCount} />`;
}

function Header({ view, waiting }) {
  const count = (name) => (name === "inbox" && waiting > 0 ? ` (${waiting})` : "");
  const here = (name) => (view === name ? "page" : undefined);
  return html`
    <header>
      <a class="brand" href="#/inbox">Holdfast</a>
      <nav aria-label="Views">
        ${Object.entries(VIEWS).map(
          ([name, words]) =>
            html`<a key=${name} href="#/${name}" aria-current=${here(name)}>${words}${count(name)}</a>`,
        )}
      </nav>
    </header>
  `;
}

function TokenForm({ wrong, onToken }) {
  const [text, setText] = useState("");
  return html`
    <h1 tabindex="-1">Who are you?</h1>
    <form class="card" onSubmit=${(event) => (event.preventDefault(), onToken(text.trim()))}>
      ${wrong && html`<p class="problem" role="alert">The server does not know this token.</p>`}
      <div class="field">
        <label for="token">Your token</label>
        <input
          id="token"
          type="password"
          autocomplete="off"
          required
          value=${text}
          onInput=${(event) => setText(event.target.value)}
        />
        <p class="quiet">It is kept in this tab only, until you close it.</p>
      </div>
      <div class="buttons"><button type="submit" class="yes">Go on</button></div>
    </form>
  `;
}

function useHash() {
  const read = () => {
    const [, view = "", ...rest] = location.hash.split("/");
    return [view || "inbox", decoded(rest.join("/"))];
  };
  const [place, setPlace] = useState(read);
  useEffect(() => {
    const changed = () => setPlace(read());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return place;
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function useSettings() {
  const [settings, setSettings] = useState({});
  useEffect(() => {
    fetch("/console/settings.json").then((reply) => reply.json()).then(setSettings, () => {});
  }, []);
  return settings;
}

render(html`<${App} />`, document.getElementById("app"));
