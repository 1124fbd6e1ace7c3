// The figures at the top of the run's page.

import { h, say } from "./dom.js";
import { loss, short, whole } from "./format.js";

const NAMES = [
  ["step", "Step"],
  ["loss", "Training loss"],
  ["speed", "Swarm speed"],
  ["peers", "Peers taking part"],
  ["samples", "Samples so far"],
  ["state", "States of peers"],
];

/** Six figures, each with a line below it. */
export function tiles() {
  const parts = {};
  const boxes = NAMES.map(([name, title]) => {
    const value = h("span");
    const unit = h("small");
    const under = h("p", { class: "under" });
    parts[name] = { value, unit, under };
    return h("div", { class: "tile", "data-tile": name }, h("dt", {}, title), h("dd", {}, value, unit, under));
  });
  parts.bar = h("progress", { max: "1", value: "0", "aria-label": "Samples towards the next step" });
  boxes[0].append(parts.bar);
  return { element: h("dl", { class: "tiles" }, boxes), parts };
}

export function showTiles({ parts }, { now }) {
  const put = (name, value, unit, under) => {
    say(parts[name].value, value);
    say(parts[name].unit, unit);
    say(parts[name].under, under);
  };
  const share = Math.min(1, now.samples / Math.max(1, now.target_batch_size));
  const isOver = now.state === "finished";
  put("step", whole(now.step), now.last_step ? `of ${whole(now.last_step)}` : "", isOver ? "the run is complete" : `${short(now.samples)} of ${short(now.target_batch_size)} samples of the next`);
  parts.bar.value = share;
  parts.bar.hidden = isOver;
  put("loss", loss(now.loss), "", now.loss === null ? "known after two reports of a trainer" : "mean over all peers, smoothed");
  put("speed", short(now.samples_per_second), "samples/s", now.state === "paused" ? "paused by the organisers" : now.samples_per_second === 0 ? "no peer computes now" : now.steps_per_hour === null ? "while peers compute" : `while peers compute · ${short(now.steps_per_hour)} steps/h`);
  const { peers } = now;
  put("peers", whole(peers.alive), "", [`${peers.training} training`, peers.helping && `${peers.helping} helping`, `${peers.syncing} syncing`, `${peers.relayed} relayed`].filter(Boolean).join(" · "));
  put("samples", short(now.total_samples), "", "of all peers, those that left included");
  const agree = now.digests_agree;
  put("state", agree === null ? "–" : agree ? "agree" : "differ", "", agree === null ? (isOver ? "nothing is compared any more" : "not compared yet") : agree ? "all digests of a step are equal" : "a peer will fetch the state again");
  if (now.split) showSplit(put, parts, now);
}

/** Where the model is cut, steps are batches that a server applied. */
function showSplit(put, parts, { step, split, samples_per_second: speed }) {
  parts.bar.hidden = true;
  put("step", whole(step), "batches", `${whole(split.waiting)} wait at the server`);
  const rate = split.batches_per_second;
  put("speed", short(speed), "samples/s", rate === null ? "not measured yet" : `${short(rate)} batches/s`);
  put("peers", whole(split.clients.length), "clients", `${whole(split.servers.length)} serving`);
  put("samples", short(split.samples), "", "of all clients");
  put("state", "–", "", "each client has its own parts");
}
