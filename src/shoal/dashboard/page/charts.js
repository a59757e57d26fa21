// What is drawn: the plan as a graph, time as bars, overlaps as a matrix.
import {html, useState, useEffect, useRef, clean, seconds, tone, words, get} from "./ui.js";

const WIDE = 190, HIGH = 58;

function levels(plan) {
  const level = {}, known = new Set(plan.map((stage) => stage.name));
  const find = (stage, path) => {
    if (level[stage.name] !== undefined) return level[stage.name];
    if (path.has(stage.name)) return 0;
    const above = stage.needs.filter((need) => known.has(need)).map((need) => plan.find((other) => other.name === need));
    return (level[stage.name] = above.length ? 1 + Math.max(...above.map((need) => find(need, new Set([...path, stage.name])))) : 0);
  };
  plan.forEach((stage) => find(stage, new Set()));
  return level;
}

export function Graph({run, sessions, onOpen}) {
  const plan = run.plan.length ? run.plan : run.steps.map((step) => ({name: step.step, needs: [], group: ""}));
  if (!plan.length) return html`<p class="dim">No plan is recorded.</p>`;
  const level = levels(plan), rows = {}, place = {};
  for (const stage of plan) {
    const column = level[stage.name];
    place[stage.name] = {x: 10 + column * (WIDE + 50), y: 10 + (rows[column] = (rows[column] ?? -1) + 1) * (HIGH + 16)};
  }
  const width = 20 + (Math.max(...Object.values(level)) + 1) * (WIDE + 50), height = 20 + Math.max(...Object.values(rows).map((row) => row + 1)) * (HIGH + 16);
  const states = Object.fromEntries(run.steps.map((step) => [step.step, step]));
  return html`<div class="scroll"><svg class="graph" width=${width} height=${height} role="img" aria-label="Plan">
    ${plan.flatMap((stage) => stage.needs.filter((need) => place[need]).map((need) => {
      const from = place[need], to = place[stage.name], y1 = from.y + HIGH / 2, y2 = to.y + HIGH / 2;
      return html`<path class="edge" d=${`M${from.x + WIDE} ${y1}C${from.x + WIDE + 25} ${y1} ${to.x - 25} ${y2} ${to.x} ${y2}`} />`;
    }))}
    ${plan.map((stage) => {
      const state = states[stage.name], at = place[stage.name], gate = run.gates.some((each) => each.step === stage.name);
      const mine = sessions.filter((row) => row.step === stage.name), first = mine[mine.length - 1];
      return html`<g class=${`node ${tone(state?.status)}`} transform=${`translate(${at.x},${at.y})`} onClick=${() => first && onOpen(first.session)}>
        <rect width=${WIDE} height=${HIGH} rx="8" /><text x="12" y="23">${clean(stage.name).slice(0, 24)}</text>
        <text class="small" x="12" y="43">${gate ? "waits for you" : words(state?.status ?? "not started")}${state?.total > 1 ? ` · ${state.good}/${state.total}` : ""}${
          state?.rounds > 1 ? ` · round ${state.rounds}` : ""}</text><title>${clean(stage.name)}</title></g>`;
    })}</svg></div>`;
}

const ROW = 24, LABEL = 170;
const COLOURS = {tool: "--live", result: "--live", retry: "--warn", trouble: "--bad", denied: "--bad", output: "--dim", said: "--text"};

// Bars are drawn on a canvas: with 200 agents and their calls, elements would be too many.
export function Timeline({place, run, sessions, now, onOpen}) {
  const canvas = useRef(null), box = useRef(null);
  const [ticks, setTicks] = useState({}), [width, setWidth] = useState(900), [over, setOver] = useState(null);
  const start = run.started_at, end = run.ended ? start + Math.max(0.1, run.duration_seconds,
    ...sessions.map((row) => row.started_at + (row.duration_seconds ?? 0) - start)) : now + 1;
  const x = (at) => LABEL + ((at - start) / (end - start)) * (width - LABEL - 10);
  const names = sessions.map((row) => `${row.session}:${row.ended ? "e" : Math.floor(row.version / 10)}`).join();
  useEffect(() => {
    let isCurrent = true;
    (async () => {
      const wanted = sessions.filter((row) => ticks[row.session]?.stamp !== (row.ended ? -1 : row.version)).slice(0, 200);
      for (let at = 0; at < wanted.length && isCurrent; at += 20) {
        const part = wanted.slice(at, at + 20);
        const found = await get(`/api/timeline/${encodeURIComponent(place.site)}/${encodeURIComponent(place.run)}?sessions=${part.map((row) => encodeURIComponent(row.session))}`).catch(() => ({}));
        if (isCurrent) setTicks((old) => ({...old, ...Object.fromEntries(part.map((row) => [row.session, {stamp: row.ended ? -1 : row.version, list: found[row.session] ?? []}]))}));
      }
    })();
    return () => { isCurrent = false; };
  }, [names]);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => setWidth(Math.max(400, Math.floor(entry.contentRect.width))));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  useEffect(() => {
    const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(name);
    const scale = devicePixelRatio || 1, pen = canvas.current.getContext("2d"), height = (sessions.length + 1) * ROW + 6;
    canvas.current.width = width * scale; canvas.current.height = height * scale;
    canvas.current.style.width = `${width}px`; canvas.current.style.height = `${height}px`;
    pen.scale(scale, scale); pen.clearRect(0, 0, width, height); pen.font = "12px system-ui, sans-serif"; pen.textBaseline = "middle";
    for (let part = 0; part <= 4; part += 1) {
      const at = start + ((end - start) * part) / 4;
      pen.fillStyle = colour("--dim"); pen.fillText(seconds(at - start), Math.min(x(at), width - 60), ROW / 2);
      pen.fillStyle = colour("--line"); pen.fillRect(x(at), ROW, 1, height);
    }
    sessions.forEach((row, index) => {
      const y = (index + 1) * ROW, stop = row.duration_seconds === null ? (row.ended ? row.started_at : now) : row.started_at + row.duration_seconds;
      pen.fillStyle = colour("--text"); pen.fillText(clean(row.session).slice(0, 24), 4, y + ROW / 2);
      pen.fillStyle = colour("--line"); pen.fillRect(x(start), y + ROW / 2, x(row.started_at) - x(start), 1);
      pen.globalAlpha = 0.35; pen.fillStyle = colour(`--${tone(row.status)}`); pen.fillRect(x(row.started_at), y + 5, Math.max(2, x(stop) - x(row.started_at)), ROW - 10); pen.globalAlpha = 1;
      for (const tick of ticks[row.session]?.list ?? []) {
        pen.fillStyle = colour(tick.ok ? COLOURS[tick.kind] ?? "--text" : "--bad");
        pen.fillRect(x(tick.at), y + (tick.kind === "output" ? 10 : 5), tick.kind === "retry" ? Math.max(2, x(tick.at + tick.seconds) - x(tick.at)) : 2, tick.kind === "output" ? 4 : ROW - 10);
      }
    });
  }, [sessions, ticks, width, now, end]);
  const find = (event) => {
    const edge = canvas.current.getBoundingClientRect(), row = sessions[Math.floor((event.clientY - edge.top) / ROW) - 1];
    if (!row) return setOver(null);
    const at = start + ((event.clientX - edge.left - LABEL) / (width - LABEL - 10)) * (end - start);
    const near = (ticks[row.session]?.list ?? []).filter((tick) => tick.kind !== "output").sort((one, other) => Math.abs(one.at - at) - Math.abs(other.at - at))[0];
    return setOver({row, near: near && Math.abs(x(near.at) - x(at)) < 8 ? near : null});
  };
  return html`<div class="timeline" ref=${box}><canvas ref=${canvas} role="img" aria-label=${`Timeline of ${sessions.length} agents; the table of agents has the same facts`}
      onMouseMove=${find} onMouseLeave=${() => setOver(null)} onClick=${() => over && onOpen(over.row.session)}></canvas>
    <p class="legend" aria-live="polite">${over ? html`<b>${clean(over.row.session)}</b> ${words(over.row.status)} ${over.near ? `${over.near.kind}: ${clean(over.near.text)}` : ""}`
      : html`<span class="live">tool call</span> <span class="warn">waiting</span> <span class="bad">failure</span> <span class="dim">output</span>`}</p></div>`;
}

export function Matrix({run, sessions, onOpen}) {
  const pairs = run.overlap_pairs;
  if (!pairs.length) return html`<p class="dim">No two agents changed the same files.</p>`;
  const names = sessions.map((row) => row.session).filter((name) => pairs.some((pair) => pair.sessions.includes(name)));
  const find = (one, other) => pairs.find((pair) => pair.sessions.includes(one) && pair.sessions.includes(other));
  return html`<div class="scroll"><p class="dim">How many files two agents both changed; red ones conflict.</p><table class="matrix"><thead><tr><td></td>
      ${names.map((name, index) => html`<th title=${clean(name)}>${index + 1}</th>`)}</tr></thead><tbody>
    ${names.map((name, index) => html`<tr><th scope="row"><a href="#" onClick=${(event) => { event.preventDefault(); onOpen(name); }}>${index + 1} ${clean(name)}</a></th>
      ${names.map((other) => {
        const pair = name === other ? null : find(name, other);
        return html`<td class=${pair ? (pair.conflicts.length ? "bad" : "warn") : ""} title=${pair ? clean(pair.paths.join("\n")) : ""}>${pair ? pair.files : name === other ? "·" : ""}</td>`;
      })}</tr>`)}</tbody></table>
    <h2>By file</h2><ul>${byFile(pairs).map(([path, found]) => html`<li><code>${clean(path)}</code> ${[...found].map(clean).join(", ")}</li>`)}</ul></div>`;
}

function byFile(pairs) {
  const files = new Map();
  for (const pair of pairs) for (const path of pair.paths) files.set(path, new Set([...(files.get(path) ?? []), ...pair.sessions]));
  return [...files].sort((one, other) => other[1].size - one[1].size).slice(0, 100);
}
