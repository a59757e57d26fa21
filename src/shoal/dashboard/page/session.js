// One agent: what it says and does, what it changed, and what it used; with a message or a stop for it.
import {html, useState, useEffect, useRef, clean, seconds, Status, Usage, Act, useLoad, get} from "./ui.js";

const VIEWS = ["log", "diff", "details"];
const MAX_EVENTS = 3000;

export function SessionPanel({place, run, row, now, go, link}) {
  const close = {...place, session: undefined};
  return html`<aside class="panel" aria-label=${`Agent ${row.session}`}>
    <header><h2>${clean(row.session)} <${Status} status=${row.status} phase=${row.phase} /></h2>
      <a class="plain" aria-label="Close" ...${link(close)}>✕</a></header>
    <p class="facts"><span>${seconds(row.duration_seconds ?? Math.max(0, now - row.started_at))}</span><${Usage} usage=${row.usage} />
      ${row.branch && html`<code>${clean(row.branch)}</code>`}</p>
    ${row.error && html`<p class="error">${clean(row.error)}</p>`}
    ${row.executable.length > 0 && html`<p class="bad" role="note">⚠ changes files that can run code on your machine: ${clean(row.executable.join(", "))}</p>`}
    ${!row.ended ? html`<${Send} place=${place} row=${row} />`
      : html`<p class="actions">${!["succeeded", "no_changes"].includes(row.status) && run.ended && html`
        <${Act} site=${place.site} fields=${{action: "retry", run: run.run, target: row.session}} label="Retry" />`}</p>`}
    <nav class="tabs" aria-label="Views of this agent">${VIEWS.map((view) => html`
      <a ...${link({...place, view})} aria-current=${place.view === view ? "page" : undefined}>${view}</a>`)}</nav>
    ${place.view === "diff" ? html`<${DiffOf} place=${place} run=${run} row=${row} />`
      : place.view === "details" ? html`<${Details} place=${place} row=${row} />`
      : html`<${Log} place=${place} row=${row} />`}</aside>`;
}

function Send({place, row}) {
  const [text, setText] = useState("");
  return html`<form class="send" onSubmit=${(event) => event.preventDefault()}>
    <input aria-label="Message to this agent" placeholder="Message, delivered between turns" value=${text} onInput=${(event) => setText(event.target.value)} />
    <${Act} site=${place.site} fields=${() => ({action: "send", session: row.session, text})} label="Send" onDone=${() => setText("")} disabled=${!text.trim()} />
    <${Act} site=${place.site} fields=${{action: "stop", target: row.session}} label="Stop" tone="danger" title="Stop this agent; its work is kept (x)" /></form>`;
}

function useEvents(place, row) {
  const [events, setEvents] = useState([]);
  const seen = useRef(0), busy = useRef(false), again = useRef(false);
  const load = async () => {
    if (busy.current) { again.current = true; return; }
    busy.current = true;
    try {
      do {
        again.current = false;
        const found = await get(`/api/events/${encodeURIComponent(place.site)}/${encodeURIComponent(row.session)}?after=${seen.current}`);
        if (found.length) {
          seen.current = found[found.length - 1].seq;
          setEvents((old) => [...old, ...found].slice(-MAX_EVENTS));
          again.current = again.current || found.length >= 500;
        }
      } while (again.current);
    } catch { /* the next change asks again */ } finally { busy.current = false; }
  };
  useEffect(() => { load(); }, [row.session, row.version, row.ended]);
  return events;
}

function Log({place, row}) {
  const events = useEvents(place, row);
  const box = useRef(null), follows = useRef(true);
  useEffect(() => { if (follows.current && box.current) box.current.scrollTop = box.current.scrollHeight; }, [events]);
  const onScroll = () => { follows.current = box.current.scrollHeight - box.current.scrollTop - box.current.clientHeight < 40; };
  return html`<div class="log" ref=${box} onScroll=${onScroll} tabindex="0" role="log" aria-label="Log">
    ${events.length === 0 && html`<p class="dim">${row.ended ? "The log is empty, or was removed." : "Nothing said yet."}</p>`}
    ${events.map((event) => html`<${Line} key=${event.seq} event=${event} />`)}</div>`;
}

const at = (event) => new Date(event.at * 1000).toLocaleTimeString();
function Line({event}) {
  const time = html`<time>${at(event)}</time>`;
  switch (event.event) {
    case "Output": return html`<div class=${event.stream === "stderr" ? "line bad" : "line"}>${time}<span>${clean(event.text)}${
      event.dropped > 0 ? html` <i>${event.dropped} bytes not kept</i>` : ""}</span></div>`;
    case "AgentActed": return html`<div class=${`line act-${event.act}${event.ok ? "" : " bad"}`}>${time}<span>${
      event.act === "said" ? "" : html`<b>${event.act === "tool" ? clean(event.tool) : event.act}</b> `}${clean(event.text)}</span></div>`;
    case "AgentStarted": return html`<div class="line dim">${time}<span>started, pid ${event.pid}</span></div>`;
    case "AgentEnded": return html`<div class="line dim">${time}<span>ended${event.signal ? ` by signal ${event.signal}` : ` with ${event.exit_code}`}</span></div>`;
    case "PermissionDecided": return event.allowed ? null : html`<div class="line warn">${time}<span>denied: ${clean(event.subject)} (${clean(event.rule)})</span></div>`;
    case "MessageDelivered": case "MessageSent": return html`<div class="line live">${time}<span>message: ${clean(event.text)}</span></div>`;
    default: return null;
  }
}

function DiffOf({place, run, row}) {
  const [other, setOther] = useState("");
  const peers = (run.sessions ?? []).filter((peer) => peer.session !== row.session && peer.branch && peer.ended);
  return html`<div>${peers.length > 0 && html`<label class="compare">Compare with <select onChange=${(event) => setOther(event.target.value)}>
      <option value="">where it started</option>${peers.map((peer) => html`<option selected=${peer.session === other}>${peer.session}</option>`)}</select></label>`}
    <${Diff} site=${place.site} query=${{a: row.session, ...(other ? {b: other} : {})}} stamp=${row.ended ? "ended" : Math.floor(row.version / 20)} /></div>`;
}

const MAX_LINES = 4000;
export function Diff({site, query, stamp}) {
  const found = useLoad(`/api/diff/${encodeURIComponent(site)}?${new URLSearchParams(query)}`, stamp);
  const [most, setMost] = useState(MAX_LINES);
  if (found.error) return html`<p class="error">${clean(found.error)}</p>`;
  if (!found.value) return html`<p>Looking…</p>`;
  const {about, patch, cut} = found.value;
  if (!patch.trim()) return html`<p class="dim">${clean(about.error) || "No changes."}</p>`;
  const flagged = new Set(about.document?.executable_config ?? []);
  const files = window.Diff2Html.parse(patch, {diffMaxChanges: 50000});
  files.sort((one, other) => flagged.has(other.newName) - flagged.has(one.newName));
  let left = most;
  return html`<div class="diff"><p class="facts"><span>${files.length} ${files.length === 1 ? "file" : "files"}</span>
      <span class="good">+${files.reduce((sum, file) => sum + file.addedLines, 0)}</span><span class="bad">−${files.reduce((sum, file) => sum + file.deletedLines, 0)}</span></p>
    ${cut && html`<p class="warn">This diff is too large to show whole.</p>`}
    ${files.map((file) => {
      const lines = file.blocks.flatMap((block) => [{type: "header", content: block.header}, ...block.lines]).slice(0, Math.max(0, left));
      left -= lines.length;
      return lines.length === 0 && !file.isBinary && file.blocks.length ? null : html`<details class="file" open key=${file.newName}><summary>${flagged.has(file.newName) && html`<span class="bad">⚠ can run code on your machine </span>`}
        <b>${clean(file.isDeleted ? file.oldName : file.newName)}</b> <span class="good">+${file.addedLines}</span> <span class="bad">−${file.deletedLines}</span></summary>
        <pre tabindex="0">${lines.map((line) => html`<span class=${`code ${line.type}`}>${clean(line.content)}\n</span>`)}</pre></details>`;
    })}
    ${left <= 0 && html`<button type="button" onClick=${() => setMost(most * 4)}>Show more</button>`}</div>`;
}

function Details({place, row}) {
  const facts = [["step", row.step], ["attempt", row.attempt], ["worker", row.index], ["branch", row.branch], ["files changed", row.files_changed],
    ...Object.entries(row.usage).map(([name, value]) => [name.replaceAll("_", " "), Number(value.toFixed(4))]),
    ...Object.entries(row.resources).map(([name, value]) => [name.replaceAll("_", " "), Number(value.toFixed(2))])];
  return html`<div class="details"><table><caption class="hidden">Facts</caption><tbody>${facts.filter(([, value]) => value !== null && value !== "").map(([name, value]) => html`
      <tr><th scope="row">${name}</th><td>${clean(value)}</td></tr>`)}</tbody></table>
    ${row.prompt && html`<h3>Task</h3><p class="prompt whole">${clean(row.prompt)}</p>`}
    ${row.contracts.length > 0 && html`<h3>Contracts</h3><ul>${row.contracts.map((check) => html`
      <li class=${check.passed ? "good" : check.warning ? "warn" : "bad"}>${check.type}: ${clean(check.message)}</li>`)}</ul>`}
    ${row.artifacts.length > 0 && html`<h3>Artifacts</h3><ul>${row.artifacts.map((name) => html`
      <li><a href=${`/api/artifact/${encodeURIComponent(place.site)}/${encodeURIComponent(row.session)}/${name.split("/").map(encodeURIComponent).join("/")}`} download>${clean(name)}</a></li>`)}</ul>`}</div>`;
}
