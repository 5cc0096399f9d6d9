// The files that a trial reported with its metrics: images are shown, other files can be downloaded.

import { request, call } from "./api.js";
import { fill, h, problem, save } from "./dom.js";

export class Artifacts {
  constructor(job, trial) {
    this.path = `/jobs/${job}/trials/${trial}/artifacts`;
    this.seen = null;
    this.shown = new Map(); // the elements by name and digest, so that an image is loaded once
    this.list = h("ul", { class: "artifacts" });
    this.failed = h("div");
    this.node = h("section", { hidden: true }, h("h3", {}, "Artifacts"), this.failed, this.list);
  }

  /** Load the list of files if the trial has reported, started or ended since the last call. `runs` is whether the trial is running. */
  async update(steps, runs) {
    const now = `${steps} ${runs}`;
    if (now === this.seen) return;
    this.seen = now;
    try {
      const { items } = await call(this.path);
      fill(this.failed);
      fill(this.list, items.map((artifact) => this.item(artifact)));
      this.node.hidden = items.length === 0;
    } catch (error) {
      this.seen = null;
      this.node.hidden = false;
      fill(this.failed, problem(error));
    }
  }

  item(artifact) {
    const key = `${artifact.name} ${artifact.sha256}`;
    if (!this.shown.has(key)) this.shown.set(key, this.create(artifact));
    return this.shown.get(key);
  }

  create(artifact) {
    const name = h("button", { type: "button", class: "quiet small", onclick: () => this.download(artifact) }, `Download ${artifact.name}`);
    const image = artifact.content_type.startsWith("image/") ? h("img", { alt: `${artifact.name} of step ${artifact.step}`, hidden: true }) : null;
    if (image !== null) this.showImage(artifact, image);
    return h("li", {}, image, h("p", {}, name, h("span", { class: "soft small" }, ` step ${artifact.step}, ${artifact.bytes} bytes`)));
  }

  async content(artifact) {
    return (await request(`${this.path}/${encodeURIComponent(artifact.name)}`)).blob();
  }

  /** Download an image and show it as a data URL. The browser cannot load it by its address, because it would not send the key. The page's
   * security policy allows no other kind of address. */
  async showImage(artifact, image) {
    try {
      const reader = new FileReader();
      reader.addEventListener("load", () => { image.src = reader.result; image.hidden = false; });
      reader.readAsDataURL(await this.content(artifact));
    } catch (error) {
      image.replaceWith(problem(error));
    }
  }

  async download(artifact) {
    try {
      save(await this.content(artifact), artifact.name);
    } catch (error) {
      fill(this.failed, problem(error));
    }
  }
}
