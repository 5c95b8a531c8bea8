// What every part of the page shares: the client, and where to say that something has failed.

import { createContext, useContext, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { isTemporary } from "./client.js";

/** `{holdfast, failed(error), reached()}`. */
export const Server = createContext(null);

/** Calls `load` now and every so many milliseconds while the page is seen; `reload` at once. */
export function useRefreshed(load, milliseconds, wanted = []) {
  const server = useContext(Server);
  const [state, setState] = useState({ value: null, error: null });
  const round = useRef(0);
  const reload = async () => {
    const mine = ++round.current;
    try {
      const value = await load();
      // A slow answer to an older question must not overwrite a newer one.
      if (mine === round.current) setState({ value, error: null });
      server.reached();
    } catch (error) {
      server.failed(error);
      if (mine === round.current && !isTemporary(error)) setState((before) => ({ ...before, error }));
    }
  };
  useEffect(() => {
    reload();
    const timer = setInterval(() => !document.hidden && reload(), milliseconds);
    const shown = () => !document.hidden && reload();
    document.addEventListener("visibilitychange", shown);
    return () => {
      round.current++;
      clearInterval(timer);
      document.removeEventListener("visibilitychange", shown);
    };
  }, wanted);
  return { ...state, reload };
}
