// A clock that can be played, paused, slowed and dragged.

export class Replay {
  /** @param {(time: number, state: {playing: boolean, ended: boolean}) => void} onTime */
  constructor(onTime) {
    this.onTime = onTime;
    this.length = 0;
    this.time = 0;
    this.speed = 1;
    this.playing = false;
    this.frame = null;
  }

  /** Another race: `length` seconds; stands at its end. */
  load(length) {
    this.pause();
    this.length = length;
    this.seek(length);
  }

  play() {
    if (this.playing || this.length <= 0) return;
    if (this.time >= this.length) this.time = 0;
    this.playing = true;
    let before = performance.now();
    const step = (now) => {
      if (!this.playing) return;
      this.time = Math.min(this.length, this.time + ((now - before) / 1000) * this.speed);
      before = now;
      if (this.time >= this.length) this.playing = false;
      this.tell();
      if (this.playing) this.frame = requestAnimationFrame(step);
    };
    this.tell();
    this.frame = requestAnimationFrame(step);
  }

  pause() {
    this.playing = false;
    if (this.frame !== null) cancelAnimationFrame(this.frame);
    this.frame = null;
    this.tell();
  }

  seek(time) {
    this.time = Math.max(0, Math.min(this.length, time));
    this.tell();
  }

  tell() {
    this.onTime(this.time, { playing: this.playing, ended: this.time >= this.length });
  }
}
