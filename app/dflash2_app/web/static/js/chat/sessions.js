// The chats of this tab that must not be forgotten when another one is shown: those that run or are not saved yet.
import { Session } from "./session.js";

export class Sessions {
  constructor() {
    this.known = new Set();
  }

  /** Remember a session as long as it has something to do. */
  add(session) {
    this.known.add(session);
    return session;
  }

  /** The chat of an id: the one at work here, else as the server has it now. */
  async open(id) {
    for (const session of this.known) if (!session.running && session.saved) this.known.delete(session);
    const found = [...this.known].find((session) => session.id === id);
    return found ?? this.add(await Session.read(id));
  }

  get(id) {
    return [...this.known].find((session) => session.id === id);
  }

  isRunning(id) {
    return this.get(id)?.running ?? false;
  }
}

/** Of this tab; it outlives the page, so that a reply goes on while another page is shown. */
export const sessions = new Sessions();
