"use strict";
// The page shows what GET api/learner says; whatever is done is a request, after which it looks again.
const $ = (id) => document.getElementById(id);
const IDLE = 4000, BUSY = 400, THUMBS = 10;
let state = null, timer = 0, sending = 0, sent = 0, drawn = "";
const wanted = new Set(); // classes that have a name and no picture yet

async function api(path, options = {}) {
  const answer = await fetch("api/" + path, options);
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    const detail = typeof body.detail === "string" ? body.detail : JSON.stringify(body.detail || answer.statusText);
    throw new Error(detail);
  }
  return body;
}

const ofClass = (name, rest = "") => "classes/" + encodeURIComponent(name) + rest;

function complain(error) {
  const words = document.createElement("p");
  words.textContent = error instanceof TypeError ? "The server does not answer; is it still running?" : error.message || error;
  if ([...$("toasts").children].some((other) => other.textContent === words.textContent)) return;
  $("toasts").append(words);
  setTimeout(() => words.remove(), 8000);
}

function bytes(count) {
  if (count < 1000) return count + " B";
  for (const unit of ["KB", "MB"]) {
    count /= 1000;
    if (count < 999.95) return count.toFixed(1) + " " + unit;
  }
  return (count / 1000).toFixed(2) + " GB";
}

const plural = (n, word) => n.toLocaleString("en") + " " + (n === 1 ? word : word + (word.endsWith("s") ? "es" : "s"));

const sentence = (words) => words && words[0].toUpperCase() + words.slice(1) + ".";

// -- what is there

async function look() {
  clearTimeout(timer);
  try {
    state = await api("learner");
    draw();
  } catch (error) {
    complain(error);
  }
  clearTimeout(timer);
  timer = setTimeout(look, state && running() ? BUSY : IDLE);
}

const running = () => state.jobs.find((job) => job.state === "running" || job.state === "queued");

function draw() {
  document.title = $("file").textContent = state.file;
  const learned = state.method !== null;
  $("about").textContent = learned
    ? `${state.method} on ${state.backbone}, pictures of ${state.image_size} × ${state.image_size}. ${sentence(state.choice)}`
    : "It has learned nothing yet. Give two classes or more some pictures each, then learn them.";
  $("memory").hidden = !learned;
  const share = state.budget ? Math.min(state.kept / state.budget, 1) : 0;
  $("gauge").hidden = !state.budget;
  $("gauge").setAttribute("aria-valuemax", state.budget || state.kept);
  $("gauge").setAttribute("aria-valuenow", state.kept);
  $("gauge").firstElementChild.style.width = 100 * share + "%";
  $("bytes").textContent = bytes(state.kept) + (state.budget ? " of " + bytes(state.budget) : "")
    + ` of memory used · network apart, ${bytes(state.network)} · file ${bytes(state.file_bytes)}`;
  $("reject-label").hidden = !state.rejects;
  drawClasses();
  drawJobs();
  drawTray();
}

function drawClasses() {
  for (const kind of state.classes) wanted.delete(kind.name);
  const kinds = [...state.classes, ...[...wanted].map((name) => ({
    name, since: null, pictures: 0, weak: false, exemplars: 0, remembered: 0, waiting: 0, forgetting: false }))];
  const now = JSON.stringify([state.version, kinds]);
  if (now === drawn) return; // else pictures would flicker and the focus would be lost
  drawn = now;
  const list = $("classes"), old = new Map([...list.children].map((item) => [item.dataset.name, item]));
  const items = kinds.map((kind) => old.get(kind.name) || newCard(kind.name));
  kinds.forEach((kind, k) => fillCard(items[k], kind));
  for (const item of old.values()) if (!items.includes(item)) item.remove();
  items.forEach((item, k) => { if (list.children[k] !== item) list.insertBefore(item, list.children[k] || null); });
}

function newCard(name) {
  const card = $("class").content.firstElementChild.cloneNode(true);
  card.dataset.name = name;
  card.querySelector("h3").textContent = name;
  takesPictures(card.querySelector(".drop"), card.querySelectorAll("input"), (files) => send(name, files));
  card.querySelector(".undo").addEventListener("click", () => act(() => api(ofClass(name, "/pictures"), { method: "DELETE" })));
  card.querySelector(".forget").addEventListener("click", () => forget(name));
  return card;
}

function fillCard(card, kind) {
  card.querySelector(".weak").hidden = !kind.weak;
  const words = [];
  if (kind.forgetting) words.push("is being forgotten");
  if (kind.pictures) words.push("learned from " + plural(kind.pictures, "picture"));
  if (kind.waiting) words.push(plural(kind.waiting, "picture") + (kind.waiting === 1 ? " waits" : " wait"));
  if (kind.since === null && !kind.waiting && !kind.forgetting) words.push(wanted.has(kind.name) ? "no pictures yet" : "being learned");
  card.querySelector(".counts").textContent = words.join(" · ");
  card.querySelector(".undo").hidden = !kind.waiting;
  card.querySelector(".forget").disabled = kind.forgetting;
  const thumbs = card.querySelector(".thumbs"), key = state.version + " " + kind.remembered;
  if (thumbs.dataset.key === key) return;
  thumbs.dataset.key = key;
  thumbs.replaceChildren();
  for (let k = 0; k < Math.min(kind.remembered, THUMBS); k++) {
    const picture = document.createElement("img");
    picture.src = `api/${ofClass(kind.name, `/pictures/${k}.png`)}?v=${encodeURIComponent(state.version)}`;
    picture.alt = `Picture ${k + 1} that the memory keeps of ${kind.name}`;
    thumbs.append(picture);
  }
  const more = document.createElement("span");
  more.className = "dim";
  if (kind.exemplars > THUMBS && kind.remembered) more.textContent = `and ${(kind.exemplars - THUMBS).toLocaleString("en")} more in memory`;
  else if (kind.since !== null && !kind.remembered) more.textContent = "The memory keeps no picture of it.";
  thumbs.append(more);
  thumbs.hidden = kind.since === null;
}

function drawJobs() {
  const last = state.jobs.filter((job) => job.state === "done" || job.state === "failed").slice(-1)[0];
  $("jobs").replaceChildren();
  if (!last) return;
  const words = document.createElement("p");
  words.className = last.state;
  words.textContent = last.state === "failed" ? `Not ${last.job === "learn" ? "learned" : "forgotten"}: ${last.error}` : told(last);
  $("jobs").append(words);
}

function told(job) {
  const found = job.result;
  if (job.job === "forget") {
    if (!found) return `Forgotten: ${job.name}.`;
    const after = found.accuracy_after === null ? "" : ` Recognised before: ${Math.round(100 * found.accuracy_before)} %, after: ${Math.round(100 * found.accuracy_after)} %.`;
    return `Forgotten: ${job.name}. ${plural(found.searched, "byte string")} of it looked for in the file, ${found.found} found.${after}`;
  }
  if (!found) return "There was nothing to learn.";
  const counts = [...Object.entries(found.new), ...Object.entries(found.more)].map(([name, n]) => `${name} (${n})`);
  const skipped = found.skipped.length ? ` ${plural(found.skipped.length, "picture")} left out: ${[...new Set(found.skipped.map((one) => one.why))].slice(0, 3).join("; ")}.` : "";
  return (counts.length ? `Learned in ${found.seconds.toFixed(0)} s: ${counts.join(", ")}.` : "Nothing new was learned.") + skipped;
}

function drawTray() {
  const job = running(), waiting = state.classes.reduce((sum, kind) => sum + kind.waiting, 0);
  $("tray").hidden = !job && !waiting && !sending;
  const bar = $("tray-progress");
  bar.hidden = !job && !sending;
  if (sending) {
    $("tray-words").textContent = `Sending pictures: ${sent} of ${sending}`;
    [bar.max, bar.value] = [sending, sent];
  } else if (job) {
    const doing = job.job === "learn" ? "Learning" : `Forgetting ${job.name}`;
    const part = job.of ? ` (${job.part}, ${job.done.toLocaleString("en")} of ${job.of.toLocaleString("en")})` : "";
    const note = job.notes.length ? job.notes[job.notes.length - 1] : "";
    $("tray-words").textContent = (job.state === "queued" ? `${doing}: waits for its turn` : doing + part + "…") + (note.startsWith("waiting") ? " " + note : "");
    if (job.of) [bar.max, bar.value] = [job.of, job.done];
    else bar.removeAttribute("value");
  } else {
    $("tray-words").textContent = plural(waiting, "new picture") + (waiting === 1 ? " waits" : " wait") + " to be learned";
  }
  $("learn").hidden = !waiting || sending > 0;
  $("learn").textContent = waiting ? `Learn ${plural(waiting, "picture")}` : "Learn";
}

// -- what is done

async function act(work) {
  try {
    await work();
  } catch (error) {
    complain(error);
  }
  await look();
}

async function send(name, files) {
  sending += files.length;
  for (const file of files) {
    drawTray();
    try {
      await api(ofClass(name, "/pictures"), { method: "POST", body: file, headers: { "Content-Type": "application/octet-stream" } });
    } catch (error) {
      complain(new Error(`${file.name}: ${error instanceof TypeError ? "could not be sent" : error.message}`));
    }
    sent++;
    if (sent % 10 === 0) await look();
  }
  if (sent === sending) sending = sent = 0;
  await look();
}

async function forget(name) {
  const kind = state.classes.find((one) => one.name === name);
  if (!kind) { // nobody but this page knows it
    wanted.delete(name);
    return draw();
  }
  $("sure-title").textContent = `Forget ${name}?`;
  $("sure-words").textContent = kind.since === null
    ? "Its pictures are removed from what waits."
    : "Everything that is kept of it leaves the file. This cannot be undone; copies of the file keep it.";
  const dialog = $("sure");
  dialog.returnValue = "no";
  dialog.showModal();
  await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
  if (dialog.returnValue === "yes") await act(() => api(ofClass(name), { method: "DELETE" }));
}

function takesPictures(place, inputs, take) {
  for (const input of inputs) {
    input.addEventListener("change", () => {
      const files = [...input.files];
      input.value = "";
      if (files.length) take(files);
    });
  }
  let depth = 0;
  place.addEventListener("dragenter", (event) => { event.preventDefault(); depth++; place.classList.add("over"); });
  place.addEventListener("dragleave", () => { if (--depth <= 0) place.classList.remove("over"); });
  place.addEventListener("dragover", (event) => event.preventDefault());
  place.addEventListener("drop", (event) => {
    event.preventDefault();
    depth = 0;
    place.classList.remove("over");
    const files = [...event.dataTransfer.files];
    if (files.length) take(files);
  });
}

// -- asking

let asked = 0, address = "", picture = null;

function showAsked(file) {
  if (address) URL.revokeObjectURL(address);
  address = URL.createObjectURL(picture = file);
  $("asked").src = address;
  $("asked").hidden = false;
  $("ask-hint").hidden = true;
}

async function ask(file) {
  const turn = ++asked;
  const unknown = $("reject").checked && state && state.rejects ? "&unknown=0.05" : "";
  try {
    const answer = await api("predict?top=5" + unknown, { method: "POST", body: file, headers: { "Content-Type": "application/octet-stream" } });
    if (turn === asked) drawAnswer(answer);
  } catch (error) {
    if (turn !== asked) return;
    $("bars").replaceChildren();
    $("ask-words").textContent = error instanceof TypeError ? "The server does not answer." :
      state && state.method === null ? "It has learned nothing yet, so it cannot tell." : error.message;
  }
}

function drawAnswer(answer) {
  $("bars").replaceChildren(...answer.classes.map(({ name, probability }) => {
    const item = document.createElement("li"), line = document.createElement("div"), bar = document.createElement("div");
    const label = document.createElement("span"), value = document.createElement("b"), fill = document.createElement("span");
    [line.className, bar.className] = ["name", "bar"];
    label.textContent = name;
    value.textContent = (100 * probability).toFixed(1) + " %";
    fill.style.width = 100 * probability + "%";
    line.append(label, value);
    bar.append(fill);
    item.append(line, bar);
    return item;
  }));
  $("ask-words").textContent = answer.unknown ? "None of the classes: this is only what is nearest." : "";
}

let stream = null;

async function live() {
  if (stream) return endLive();
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch (error) {
    return complain(new Error("The camera cannot be used: " + error.message));
  }
  const video = $("live"), canvas = document.createElement("canvas");
  video.srcObject = stream;
  video.hidden = false;
  $("asked").hidden = $("ask-hint").hidden = true;
  $("ask-live").textContent = "Stop the camera";
  await video.play();
  while (stream) {
    const scale = Math.min(1, 480 / Math.max(video.videoWidth, video.videoHeight, 1));
    [canvas.width, canvas.height] = [Math.max(1, video.videoWidth * scale), Math.max(1, video.videoHeight * scale)];
    canvas.getContext("2d").drawImage(video, 0, 0, canvas.width, canvas.height);
    const frame = await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.9));
    if (stream && frame) await ask(frame);
    await new Promise((done) => setTimeout(done, 250));
  }
}

function endLive() {
  for (const track of stream.getTracks()) track.stop();
  stream = null;
  $("live").hidden = true;
  $("ask-hint").hidden = false;
  $("ask-live").textContent = "Live camera";
}

document.addEventListener("DOMContentLoaded", () => {
  takesPictures($("ask-drop"), [$("ask-file"), $("ask-camera")], (files) => {
    if (stream) endLive();
    showAsked(files[0]);
    ask(files[0]);
  });
  for (const kind of ["dragover", "drop"]) { // a picture that misses must not replace the page
    document.addEventListener(kind, (event) => event.preventDefault());
  }
  $("new").addEventListener("submit", async (event) => {
    event.preventDefault();
    const name = $("new-name").value.trim().normalize("NFC");
    if (!name) return;
    wanted.add(name); // one that is there already is taken out again
    $("new-name").value = "";
    if (!state) await look(); // the server has not answered yet
    if (!state) return;
    draw();
    const card = [...$("classes").children].find((item) => item.dataset.name === name);
    card.scrollIntoView({ block: "nearest" });
    card.querySelector("input").focus();
  });
  $("learn").addEventListener("click", () => act(() => api("learn", { method: "POST" })));
  $("reject").addEventListener("change", () => { if (picture && !stream) ask(picture); });
  $("ask-live").hidden = !(navigator.mediaDevices && navigator.mediaDevices.getUserMedia);
  $("ask-live").addEventListener("click", live);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
  look();
});
