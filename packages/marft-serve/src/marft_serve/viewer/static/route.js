// Where one is stands in location.hash, so that any view can be sent to somebody: #/run/demo/episodes?q=sum&sort=reward

export function parse(hash = location.hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  return {
    path: path.split("/").filter(Boolean).map(decode),
    query: Object.fromEntries(new URLSearchParams(query || "")),
  };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a lone % that somebody typed
  }
}

/** A link: empty values leave the query. */
export function href(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const search = new URLSearchParams(given).toString();
  return `#/${path.map(encodeURIComponent).join("/")}${search ? `?${search}` : ""}`;
}

export function go(path, query) {
  location.hash = href(path, query);
}

/** Writes the state of a view into the address without leaving the view. */
export function remember(path, query) {
  history.replaceState(null, "", href(path, query));
}
