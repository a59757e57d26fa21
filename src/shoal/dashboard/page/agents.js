// The agents of a run as a table; of very many only those that can be seen are drawn.
import {html, useState, useEffect, useRef, clean, seconds, tokens, cost, tone, Status, useRows, useWidth, useKeys} from "./ui.js";

const GROUPS = [["all", () => true], ["working", (row) => !row.ended], ["succeeded", (row) => row.ended && tone(row.status) === "good"],
  ["failed", (row) => row.ended && tone(row.status) === "bad"], ["other", (row) => row.ended && !["good", "bad"].includes(tone(row.status))]];

export function Agents({place, run, sessions, now, go, link}) {
  const [group, setGroup] = useState("all"), [text, setText] = useState("");
  const find = useRef(null), body = useRef(null);
  const every = sessions.filter((row) => !row.discarded);
  const inGroup = every.filter(GROUPS.find(([name]) => name === group)[1]);
  const wanted = text.toLowerCase();
  const shown = wanted ? inGroup.filter((row) => `${row.session} ${row.prompt} ${row.last} ${row.error ?? ""} ${row.agent}`.toLowerCase().includes(wanted)) : inGroup;
  const high = useWidth("(max-width: 700px)") ? 92 : 50;
  const [first, last] = useRows(body, shown.length, high);
  useKeys((event) => {
    const at = shown.findIndex((row) => row.session === place.session);
    if (event.key === "/") find.current?.focus();
    else if (event.key === "j" || event.key === "k") {
      const next = shown[Math.min(shown.length - 1, Math.max(0, at + (event.key === "j" ? 1 : -1)))];
      if (next) go({...place, session: next.session});
    } else return false;
    return true;
  });
  useEffect(() => {  // the chosen one may be among those that are not drawn
    const at = shown.findIndex((row) => row.session === place.session), top = (body.current?.getBoundingClientRect().top ?? 0) + at * high;
    if (at >= 0 && (top < 2 * high || top > innerHeight - high)) scrollBy({top: top - innerHeight / 3});
  }, [place.session]);
  const overlapping = new Set(run.overlap_pairs.filter((pair) => !pair.step).flatMap((pair) => pair.sessions));
  const gap = (rows) => rows > 0 && html`<tr aria-hidden="true" style=${{height: `${rows * high}px`}}></tr>`;
  if (!every.length) return html`<p class="box dim">${run.ended ? "No agent was started." : "No agent has started yet."}</p>`;
  return html`<div class="tools" role="group" aria-label="Which agents">${GROUPS.map(([name, isIn]) => {
      const count = every.filter(isIn).length;
      return (count > 0 || name === group) && html`<button type="button" class="chip" key=${name} aria-pressed=${group === name} onClick=${() => setGroup(name)}>${name} ${count}</button>`;
    })}<input ref=${find} type="search" aria-label="Find agents" placeholder="Find agents ( / )" value=${text} onInput=${(event) => setText(event.target.value)} /></div>
    <table class="agents" aria-rowcount=${shown.length + 1}><caption class="hidden">Agents</caption><thead><tr><th class="c-agent">Agent</th><th class="c-state">State</th><th class="number c-time">Time</th>
      <th class="c-last">Last action</th><th class="number c-tokens">Tokens</th><th class="number c-cost">Cost</th><th class="number c-memory">Memory</th><th class="number c-files">Files</th></tr></thead>
    <tbody ref=${body}>${gap(first)}${shown.slice(first, last).map((row) => html`<${Row} key=${row.session} row=${row} place=${place} now=${now} go=${go} link=${link} isOverlapping=${overlapping.has(row.session)} />`)}${gap(shown.length - last)}</tbody></table>
    ${!shown.length && html`<p class="more">No agent matches.</p>`}
    ${run.queued > 0 && html`<p class="more">${run.queued} more ${run.queued === 1 ? "has" : "have"} not started.</p>`}`;
}

function Row({row, place, now, go, link, isOverlapping}) {
  const isChosen = row.session === place.session;
  const said = clean(row.ended ? row.error ?? "" : row.last), memory = row.ended ? row.resources.memory_peak_mb : row.sample?.memory_mb;
  return html`<tr class=${`row${isChosen ? " chosen" : ""}`} onClick=${(event) => { if (!event.target.closest("a")) go({...place, session: row.session}); }}>
    <td class="c-agent"><div><a class="name" ...${link({...place, session: row.session})}>${clean(row.session)}</a>${row.attempt > 1 && html` <span class="tag">attempt ${row.attempt}</span>`}
        ${row.executable.length > 0 && html` <span class="tag bad" title="It changes files that can run code on your machine">⚠ runs code</span>`}</div>
      <div class="dim" title=${clean(row.prompt)}>${clean(row.prompt)}</div></td>
    <td class="c-state"><${Status} status=${row.status} phase=${row.phase} />${row.limit && html` <small class="dim">${row.limit}</small>`}</td>
    <td class="number c-time">${seconds(row.duration_seconds ?? Math.max(0, now - row.started_at))}</td>
    <td class="c-last"><div class=${row.last_ok && !row.error ? "mono" : "mono bad"} title=${said}>${said}</div></td>
    <td class="number c-tokens">${tokens(row.usage) === "0" ? "" : tokens(row.usage)}</td><td class="number c-cost">${cost(row.usage)}</td>
    <td class="number c-memory">${memory === null || memory === undefined ? "" : `${Math.round(memory)} MB`}</td>
    <td class="number c-files">${isOverlapping && html`<span class="warn" title="It changed files that another agent changed too">∩ </span>`}${row.files_changed ?? (row.edited ? `${row.edited}+` : "")}</td></tr>`;
}
