// What every part of the page shares: the client, and where to say that something has failed.

import { createContext, useContext, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { isTemporary } from "./client.js";

/** `{holdfast, failed(error), reached(), gone}`. `gone`: ids of runs that were deleted here. */
export const Server = createContext(null);

/**
 * Calls `load` now and every so many milliseconds while the page is seen; `reload` calls it at once.
 *
 * One call at a time: a server that is slower than the interval is not asked ever faster, and an old answer never
 * overwrites a newer one.
 */
export function useRefreshed(load, milliseconds, wanted = []) {
  const server = useContext(Server);
  const [state, setState] = useState({ value: null, error: null });
  const reload = useRef(() => {});
  useEffect(() => {
    const turn = { alive: true, busy: false, again: false };
    const once = async () => {
      try {
        const value = await load();
        if (turn.alive) setState({ value, error: null });
        server.reached();
      } catch (error) {
        server.failed(error);
        if (turn.alive && !isTemporary(error)) setState((before) => ({ ...before, error }));
      }
    };
    const run = async () => {
      turn.again = true;
      if (turn.busy) return;
      turn.busy = true;
      while (turn.again && turn.alive) {
        turn.again = false;
        await once();
      }
      turn.busy = false;
    };
    const tick = () => !document.hidden && !turn.busy && run();
    reload.current = run;
    run();
    const timer = setInterval(tick, milliseconds);
    document.addEventListener("visibilitychange", tick);
    return () => {
      turn.alive = false;
      clearInterval(timer);
      document.removeEventListener("visibilitychange", tick);
    };
  }, wanted);
  return { ...state, reload: () => reload.current() };
}

/** Why something was not done, in words for a person. */
export function whyNot(error) {
  return error.status === undefined ? "the server could not be reached" : error.message;
}
