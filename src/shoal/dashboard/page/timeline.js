// What the agents did and used over time: bars on small canvases, and plots; only of those agents that can be seen.
import {html, useState, useEffect, useRef, clean, seconds, words, useRows, useWidth, useOfSessions} from "./ui.js";

const FILLS = {queue: "--strong", setup: "--idle-fill", run: "--live-fill", wait: "--warn-fill", seal: "--good-fill", check: "#8c6bc8", call: "--text", bad: "--bad-fill"};
const NAMES = {queue: "queued", setup: "set-up", run: "running", wait: "waiting for the model", seal: "sealing", check: "verifying", call: "tool call", bad: "failed or denied"};
const RANGES = [["all", 0], ["last 10 min", 600], ["last minute", 60]];

export function Timeline({place, run, sessions, now, link}) {
  const box = useRef(null);
  const [first, last] = useRows(box, sessions.length, 26);
  const shown = sessions.slice(first, last);
  const lanes = useOfSessions("timeline", place, shown);
  const [tip, setTip] = useState(null), [length, setLength] = useState(0);
  const ends = sessions.map((row) => row.started_at + (row.duration_seconds ?? 0));
  const end = run.ended ? Math.max(run.started_at + Math.max(0.1, run.duration_seconds), ...ends) : now;
  const start = length ? Math.max(run.started_at, end - length) : run.started_at;
  if (!sessions.length) return html`<p class="box dim">No agent has started yet.</p>`;
  return html`<div class="box"><div class="tools"><p class="legend">${Object.entries(NAMES).map(([kind, name]) => html`<span><i class=${`k-${kind}`}></i>${name}</span>`)}</p><span class="space"></span>
      ${end - run.started_at > 90 && RANGES.map(([name, most]) => html`<button type="button" class="chip" aria-pressed=${length === most} onClick=${() => setLength(most)}>${name}</button>`)}</div>
    <div class="lanes"><div class="lane axis" aria-hidden="true"><span></span><div><${Axis} start=${start} end=${end} origin=${run.started_at} /></div></div>
      <div ref=${box} style=${{paddingTop: `${first * 26}px`, paddingBottom: `${(sessions.length - last) * 26}px`}}>${shown.map((row) => html`<div class="lane" key=${row.session}>
        <a class="clip" ...${link({...place, session: row.session})}>${clean(row.session)}</a>
        <div><${LaneBar} row=${row} lane=${lanes[row.session]} start=${start} end=${end} now=${now} onTip=${setTip} /></div></div>`)}</div></div>
    ${tip && html`<div class="tip" style=${{left: `${Math.min(tip.x + 12, innerWidth - 300)}px`, top: `${tip.y + 16}px`}}>${tip.text}</div>`}</div>`;
}

function usePen(paint, inputs) {
  const canvas = useRef(null), [width, setWidth] = useState(0);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    watch.observe(canvas.current);
    return () => watch.disconnect();
  }, []);
  useEffect(() => {
    if (!width) return;
    const scale = devicePixelRatio || 1, pen = canvas.current.getContext("2d"), high = 24;
    canvas.current.width = width * scale; canvas.current.height = high * scale;
    pen.scale(scale, scale);
    const style = getComputedStyle(document.documentElement);
    paint(pen, width, (name) => (name.startsWith("#") ? name : style.getPropertyValue(name)));
  }, [width, ...inputs]);
  return [canvas, width];
}

function Axis({start, end, origin}) {
  const [canvas] = usePen((pen, width, colour) => {
    pen.font = "11px system-ui, sans-serif"; pen.textBaseline = "middle"; pen.fillStyle = colour("--dim");
    const parts = Math.max(2, Math.min(8, Math.floor(width / 110)));
    for (let index = 0; index <= parts; index += 1) {
      pen.textAlign = index === 0 ? "left" : index === parts ? "right" : "center";
      pen.fillText(seconds(start - origin + ((end - start) * index) / parts), (width * index) / parts, 12);
    }
  }, [start, end]);
  return html`<canvas ref=${canvas}></canvas>`;
}

function LaneBar({row, lane, start, end, now, onTip}) {
  const place = (at, width) => ((at - start) / Math.max(0.001, end - start)) * width;
  const spans = lane ? lane.spans.map(([from, to, kind], index) => [from, index === lane.spans.length - 1 && !row.ended ? now : to, kind]) : [];
  const [canvas, width] = usePen((pen, wide, colour) => {
    pen.clearRect(0, 0, wide, 24);
    for (const [from, to, kind] of spans) {
      const x = place(from, wide), isThin = kind === "queue";
      pen.fillStyle = colour(FILLS[kind]);
      pen.fillRect(x, isThin ? 11 : kind === "wait" ? 6 : 5, Math.max(isThin ? 0 : 1.5, place(to, wide) - x), isThin ? 2 : kind === "wait" ? 12 : 14);
    }
    for (const [at, took, kind] of lane?.ticks ?? []) {
      const x = place(at, wide);
      pen.fillStyle = colour(FILLS[kind] ?? "--text");
      if (kind === "call" && took > 0) { pen.globalAlpha = 0.35; pen.fillRect(x, 8, Math.max(2, place(at + took, wide) - x), 8); pen.globalAlpha = 1; }
      if (kind === "bad") pen.fillRect(x - 1, 3, 2.5, 18);
      else if (kind !== "wait") { pen.globalAlpha = 0.6; pen.fillRect(x, 6, 1, 12); pen.globalAlpha = 1; }
    }
  }, [lane, start, end, row.ended]);
  const find = (event) => {
    const edge = canvas.current.getBoundingClientRect(), at = start + ((event.clientX - edge.left) / width) * (end - start);
    const near = (lane?.ticks ?? []).map((tick) => [Math.abs(place(tick[0] - 0, width) - (event.clientX - edge.left)), tick]).filter(([far]) => far < 7).sort((a, b) => a[0] - b[0])[0]?.[1];
    const span = spans.findLast(([from, to]) => at >= from && at <= to);
    const text = near ? `${clean(near[3])}${near[1] > 0 ? ` · ${seconds(near[1])}` : ""}` : span ? `${NAMES[span[2]]} · ${seconds(span[1] - span[0])}` : "";
    onTip(text ? {x: event.clientX, y: event.clientY, text} : null);
  };
  const calls = lane?.ticks.filter((tick) => tick[2] === "call").length ?? 0;
  return html`<canvas ref=${canvas} role="img" aria-label=${`${clean(row.session)}: ${words(row.status)}, ${seconds(row.duration_seconds ?? now - row.started_at)}, ${calls} tool calls`}
    onMouseMove=${find} onMouseLeave=${() => onTip(null)}></canvas>`;
}

const PLOTS = [["memory", "Memory", "MB"], ["cpu", "CPU", "% of a core"], ["disk", "Disk", "MB"]];
const number = (value) => (value < 10 ? value.toFixed(1) : Math.round(value).toLocaleString("en"));

export function Resources({place, sessions, link}) {
  const box = useRef(null), high = useWidth("(max-width: 700px)") ? 118 : 92;
  const [first, last] = useRows(box, sessions.length, high);
  const shown = sessions.slice(first, last);
  const samples = useOfSessions("samples", place, shown);
  const tops = Object.fromEntries(PLOTS.map(([kind]) => [kind, Math.max(0, ...Object.values(samples).flatMap((found) => found[kind].map(([, value]) => value)))]));
  if (!sessions.length) return html`<p class="box dim">No agent has started yet.</p>`;
  return html`<div class="box"><p class="dim">All agents have the same scale. An agent that ended in less than a second has no plot.</p>
    <div ref=${box} style=${{paddingTop: `${first * high}px`, paddingBottom: `${(sessions.length - last) * high}px`}}>${shown.map((row) => html`<section class="use" key=${row.session} aria-label=${row.session}>
      <a class="clip" ...${link({...place, session: row.session, view: "resources"})}>${clean(row.session)}</a>
      <div class="plots">${PLOTS.map(([kind, name, unit]) => html`<${Plot} name=${name} unit=${unit} points=${samples[row.session]?.[kind] ?? []} top=${tops[kind]} />`)}</div></section>`)}</div></div>`;
}

export function SessionResources({place, row}) {
  const samples = useOfSessions("samples", place, [row])[row.session];
  if (!samples) return html`<p class="dim">Loading…</p>`;
  const used = row.resources;
  const facts = [["memory at most", used.memory_peak_mb, "MB"], ["memory on average", used.memory_average_mb, "MB"], ["CPU", used.cpu_seconds, "s"], ["disk", used.disk_mb, "MB"]].filter(([, value]) => value !== undefined && value !== null);
  return html`<p class="facts">${facts.map(([name, value, unit]) => html`<span>${name} <b>${number(value)}</b> ${unit}</span>`)}</p>
    <div class="plots">${PLOTS.map(([kind, name, unit]) => html`<${Plot} isBig name=${name} unit=${unit} points=${samples[kind]} />`)}</div>`;
}

function Plot({name, unit, points, top, isBig}) {
  const [over, setOver] = useState(null);
  const most = Math.max(...points.map(([, value]) => value), 0), scale = Math.max(top ?? most, 0.001) * 1.05;
  const from = points[0]?.[0] ?? 0, long = Math.max(0.001, (points[points.length - 1]?.[0] ?? 0) - from);
  const line = points.map(([at, value]) => `${((at - from) / long) * 300},${100 - (value / scale) * 100}`).join(" ");
  const find = (event) => {
    const edge = event.currentTarget.getBoundingClientRect(), at = from + ((event.clientX - edge.left) / edge.width) * long;
    setOver(points.reduce((best, point) => (Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best), points[0]));
  };
  const label = points.length < 2 ? "no samples" : over ? `${number(over[1])} ${unit} at ${seconds(over[0] - from)}` : `at most ${number(most)} ${unit}`;
  return html`<figure class=${`plot${isBig ? " big" : ""}`}><figcaption><span>${name}</span><b>${label}</b></figcaption>
    ${points.length > 1 && html`<svg viewBox="0 0 300 100" preserveAspectRatio="none" role="img" aria-label=${`${name}: at most ${number(most)} ${unit}, in ${seconds(long)}`} onMouseMove=${find} onMouseLeave=${() => setOver(null)}>
      <polygon points=${`0,100 ${line} 300,100`} /><polyline points=${line} />
      ${over && html`<line x1=${((over[0] - from) / long) * 300} x2=${((over[0] - from) / long) * 300} y1="0" y2="100" />`}</svg>`}</figure>`;
}
