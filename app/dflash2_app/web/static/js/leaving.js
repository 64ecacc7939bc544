// What is asked before a page is left: a window may hold changes that nobody has saved.
const questions = new Set();

/**
 * Ask before the page is left, until the function that is returned is called.
 * @param {() => boolean | Promise<boolean>} ask resolves to whether it may be left
 */
export function askBeforeLeaving(ask) {
  questions.add(ask);
  return () => questions.delete(ask);
}

/** Whether nothing keeps the reader on this page. */
export async function mayLeave() {
  for (const ask of questions) if (!await ask()) return false;
  return true;
}
