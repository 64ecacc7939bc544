// Races kept in this browser, newest first, at most LIMIT of them.
import { SCHEMA, VERSION, nameOf } from "./record.js";

export const LIMIT = 30;
const NAME = "dflash2-races", TABLE = "races";

function open() {
  return new Promise((resolve, reject) => {
    const asked = indexedDB.open(NAME, 1);
    asked.onupgradeneeded = () => asked.result.createObjectStore(TABLE, { keyPath: "id" });
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error);
  });
}

async function run(mode, work) {
  const base = await open();
  try {
    return await new Promise((resolve, reject) => {
      const change = base.transaction(TABLE, mode);
      const asked = work(change.objectStore(TABLE));
      change.oncomplete = () => resolve(asked?.result);
      change.onerror = change.onabort = () => reject(change.error);
    });
  } finally {
    base.close();
  }
}

/** All kept entries: {id, created, name, record}. */
export async function list() {
  const entries = await run("readonly", (table) => table.getAll());
  // What another version of this page kept in another form stays unseen.
  return entries.filter(({ record }) => record?.schema === SCHEMA && record.version === VERSION).sort((a, b) => (a.kept < b.kept ? 1 : -1));
}

/** Keep a race; the oldest beyond LIMIT goes. Resolves to how many went. */
export async function keep(record) {
  const entry = { id: record.run.id, name: nameOf(record), kept: new Date().toISOString(), record };
  await run("readwrite", (table) => table.put(entry));
  const beyond = (await list()).slice(LIMIT);
  for (const old of beyond) await remove(old.id);
  return beyond.length;
}

export function remove(id) {
  return run("readwrite", (table) => table.delete(id));
}
