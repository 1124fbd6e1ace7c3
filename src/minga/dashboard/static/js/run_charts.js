// The charts and lists of the run's page.

import { Chart } from "./charts.js";
import { card, h } from "./dom.js";
import { bitRate, duration, loss, peerName, percent, short } from "./format.js";
import { Log } from "./log.js";
import { segments } from "./segments.js";

const SPEED_COLORS = ["c1", "c2", "c3", "c4", "c5", "c6", "c7"];
const RECENT = 40;

export class RunCharts {
  constructor() {
    this.axis = "time";
    this.makeCharts();
    this.comings = new Log("comings and goings", ["No peer came or went yet.", "Joins, leaves and deaths of peers stand here."]);
    this.misses = new Log("missed rounds", ["No peer missed a round.", "The reason of each miss stands here."]);
    this.findings = new Log("suspicions and bans", ["No peer was suspected, accused or banned.", "That is how it should be."]);
    this.syncs = new Log("sync times", ["No newcomer came while this dashboard watched.", "How long each took to fetch the state stands here."]);
    this.counts = h("div", { class: "counts" });
    this.element = h("div", { class: "grid" }, this.cards());
  }

  makeCharts() {
    this.loss = new Chart("Loss", {
      series: [{ label: "training", color: "accent" }, { label: "held out", color: "c3", points: true, width: 1 }],
      format: loss, height: 300, fromZero: false,
      whenEmpty: ["No loss yet.", "It is known once two reports of a trainer were compared."],
    });
    this.speed = new Chart("Swarm speed by peer", {
      series: [{ label: "others", color: "c8" }], format: short, stacked: true,
      whenEmpty: ["No speed yet.", "The first point comes within five seconds."],
    });
    this.peers = new Chart("Peers", {
      series: [{ label: "alive", color: "c8" }, { label: "training", color: "accent" }, { label: "syncing", color: "c3", dash: [6, 4] }, { label: "relayed", color: "c4", dash: [2, 3] }],
      format: short, counts: true,
      whenEmpty: ["No peers yet.", "The first point comes within five seconds."],
    });
    this.rounds = new Chart("Anatomy of the last rounds", {
      series: [{ label: "compute", color: "accent" }, { label: "wait", color: "c8" }, { label: "communicate", color: "c2" }, { label: "apply", color: "c3" }],
      format: duration, x: "step", stacked: true, bars: true,
      whenEmpty: ["No rounds yet.", "Each round comes here once its step is applied."],
    });
    this.participation = new Chart("Participation", {
      series: [{ label: "share in the round", color: "accent" }], format: percent,
      whenEmpty: ["No rounds yet.", "Each round comes here once its step is applied."],
    });
    this.traffic = new Chart("Traffic of all peers", {
      series: [{ label: "sent", color: "accent" }, { label: "received", color: "c2", dash: [6, 4] }], format: bitRate,
      whenEmpty: ["No traffic yet.", "The first point comes within ten seconds."],
    });
    this.charts = [this.loss, this.speed, this.peers, this.rounds, this.participation, this.traffic];
  }

  cards() {
    const axis = segments("Loss over", [["time", "Time"], ["samples", "Samples"]], (chosen) => {
      this.axis = chosen;
      this.loss.setX(chosen);
      if (this.run) this.showLoss(this.run);
    });
    this.ofRounds = [
      card("Anatomy of rounds", { note: "as one peer that takes part saw them" }, this.rounds.element),
      card("Participation", { note: "peers in step that were in the round" }, this.participation.element),
      card("Missed rounds", { note: "who missed one, and why" }, this.misses.element),
    ];
    const [anatomy, participation, misses] = this.ofRounds;
    return [
      card("Loss", { width: "wide", aside: axis, note: "▲ joined  ▼ left  ✕ lost  ┆ ban or order" }, this.loss.element),
      card("Swarm speed", { note: "samples/s, stacked by peer" }, this.speed.element),
      card("Peers", { note: "alive, training, syncing, relayed" }, this.peers.element),
      anatomy,
      participation,
      card("Traffic", { note: "all peers together" }, this.traffic.element),
      misses,
      card("Comings and goings", { width: "third" }, this.comings.element),
      card("Newcomers", { width: "third", note: "time to fetch the state" }, this.syncs.element),
      card("Trust", { width: "third", aside: this.counts }, this.findings.element),
    ];
  }

  show(run) {
    this.run = run;
    const { series, journals } = run;
    for (const one of this.ofRounds) one.hidden = !run.sees_rounds;
    this.showLoss(run);
    this.showSpeed(run.rates);
    const swarm = series.swarm.columns;
    this.peers.show([swarm.t, swarm.alive, swarm.training, swarm.syncing, swarm.relayed]);
    this.traffic.show([swarm.t, swarm.sent, swarm.received]);
    const rounds = journals.rounds.entries.slice(-RECENT);
    this.rounds.show(["step", "compute_s", "wait_s", "communicate_s", "apply_s"].map((name) => rounds.map((round) => round[name])));
    this.participation.show([series.participation.columns.t, series.participation.columns.share]);
    this.comings.show(journals.marks, (entry) => [entry.event, entry.peer ? peerLink(entry) : (entry.changes ?? `at step ${entry.step}`)]);
    this.misses.show(journals.misses, (entry) => [`step ${entry.step}`, peerLink(entry), ` ${entry.why}`]);
    this.findings.show(journals.findings, (entry) => [entry.event, peerLink(entry), ` ${entry.why}`]);
    this.syncs.show(journals.syncs, (entry) => [duration(entry.seconds), peerLink(entry)]);
    this.showCounts(run.now.counts);
  }

  showLoss({ series, journals, headline }) {
    const { columns } = series.loss;
    const held = series.evaluation.columns;
    const by = this.axis === "time" ? "t" : "samples";
    const [at, losses] = withGaps(columns.t, columns[by], columns.loss);
    const marks = journals.marks.entries.map((mark) => ({ x: this.axis === "time" ? mark.t : mark.samples, event: mark.event }));
    const isLoss = !headline || headline.endsWith("loss");
    const [x, training, heldOut] = merged(at, losses, isLoss ? held[by] : [], held.value);
    this.loss.show([x, training, heldOut], marks);
  }

  showSpeed(rates) {
    const hasOthers = rates.others.some((rate) => rate > 0) || rates.peers.length === 0;
    const series = rates.peers.map(({ peer }, place) => ({ label: peerName(peer), color: SPEED_COLORS[place % 7] }));
    this.speed.setSeries(hasOthers ? [...series, { label: "others", color: "c8" }] : series);
    this.speed.show([rates.t, ...rates.peers.map((one) => one.rates), ...(hasOthers ? [rates.others] : [])]);
  }

  showCounts(counts) {
    const tag = (name, kind) => h("span", { class: `tag ${counts[name] ? kind : ""}` }, `${counts[name]} ${name}`);
    this.counts.replaceChildren(tag("suspected", "warn"), tag("accused", "bad"), tag("banned", "bad"));
  }

  close() {
    for (const chart of this.charts) chart.close();
  }
}

function peerLink({ peer }) {
  return peer ? h("a", { href: `/peers/${peer}`, "data-page": true, class: "id" }, peerName(peer)) : "all peers";
}

/** A curve with a hole wherever nobody looked: for a minute at least, and ten times as long as usual. */
export function withGaps(t, x, y) {
  const apart = t.slice(1).map((time, place) => time - t[place]);
  const usual = [...apart].sort((one, other) => one - other)[apart.length >> 1] ?? 0;
  const longest = Math.max(60, 10 * usual);
  const places = t.flatMap((_, place) => (place && apart[place - 1] > longest ? [-place, place] : [place]));
  return [places.map((place) => (place < 0 ? (x[-place - 1] + x[-place]) / 2 : x[place])), places.map((place) => (place < 0 ? null : y[place]))];
}

/** Two curves over one x: where only one has a value, the other has undefined, over which its line goes on. */
export function merged(x1, y1, x2, y2) {
  const points = [...x1.map((x, place) => [x, y1[place], undefined]), ...x2.map((x, place) => [x, undefined, y2[place]])];
  points.sort((one, other) => one[0] - other[0]);
  return [0, 1, 2].map((place) => points.map((point) => point[place]));
}
