// Layered drawing (Sugiyama): rows by longest paths, long edges through placeholders, rows ordered
// by barycentres of their neighbours, places near the mean of these. Linear in the number of edges
// for each sweep.

const GAP = { x: 18, y: 30, dummy: 14 };
const SWEEPS = 8;
const LONGEST = 30; // rows that an edge crosses through placeholders; longer ones are drawn straight

/** Places for boxes ({w, h}) with edges [from, to]: {x, y} of each, points of each edge, the size. */
function layered(boxes, edges) {
  const order = topological(boxes.length, edges);
  const forward = edges.map(([a, b]) => (order[a] < order[b] ? [a, b] : [b, a]));
  const rank = ranks(boxes.length, forward, order);
  const net = withDummies(boxes, forward, rank);
  const rows = initialRows(net, order);
  for (let n = 0; n < SWEEPS; n++) sweep(rows, n % 2 ? net.after : net.before, n % 2 === 1);
  const x = placed(rows, net);
  return drawn(rows, net, x, boxes, edges, forward);
}

/** A number for each node so that edges go up; edges of circles excepted. */
function topological(count, edges) {
  const left = new Array(count).fill(0);
  const after = Array.from({ length: count }, () => []);
  for (const [a, b] of edges) if (a !== b) { left[b]++; after[a].push(b); }
  const order = new Array(count).fill(-1);
  const ready = [];
  for (let n = 0; n < count; n++) if (!left[n]) ready.push(n);
  let next = 0, circled = 0;
  while (next < count) {
    if (!ready.length) { // a circle: the first that is left opens it
      while (order[circled] >= 0) circled++;
      ready.push(circled);
    }
    const node = ready.pop();
    if (order[node] >= 0) continue;
    order[node] = next++;
    for (const b of after[node]) if (--left[b] === 0) ready.push(b);
  }
  return order;
}

function ranks(count, edges, order) {
  const sorted = [...Array(count).keys()].sort((a, b) => order[a] - order[b]);
  const before = Array.from({ length: count }, () => []);
  const after = Array.from({ length: count }, () => []);
  for (const [a, b] of edges) { before[b].push(a); after[a].push(b); }
  const rank = new Array(count).fill(0);
  for (const n of sorted) for (const a of before[n]) rank[n] = Math.max(rank[n], rank[a] + 1);
  for (const n of sorted.reverse()) { // what nothing leads to stands just before its readers
    if (!before[n].length && after[n].length) rank[n] = Math.min(...after[n].map((b) => rank[b])) - 1;
  }
  const least = Math.min(0, ...rank);
  return rank.map((r) => r - least);
}

function withDummies(boxes, edges, rank) {
  const net = { rank: [...rank], width: boxes.map((b) => b.w), before: [], after: [], chains: [] };
  const node = () => { net.before.push([]); net.after.push([]); };
  boxes.forEach(node);
  const join = (a, b) => { net.after[a].push(b); net.before[b].push(a); };
  for (const [a, b] of edges) {
    const chain = [a];
    if (rank[b] - rank[a] <= LONGEST) {
      for (let r = rank[a] + 1; r < rank[b]; r++) {
        const dummy = net.rank.push(r) - 1;
        net.width.push(GAP.dummy);
        node();
        join(chain[chain.length - 1], dummy);
        chain.push(dummy);
      }
      join(chain[chain.length - 1], b);
    }
    chain.push(b);
    net.chains.push(chain);
  }
  return net;
}

function initialRows(net, order) {
  const rows = Array.from({ length: Math.max(0, ...net.rank) + 1 }, () => []);
  const key = (n) => (n < order.length ? order[n] : order[net.before[n][0]] ?? n);
  net.rank.forEach((r, n) => rows[r].push(n));
  for (const row of rows) row.sort((a, b) => key(a) - key(b));
  return rows;
}

function sweep(rows, beside, backwards) {
  const place = [];
  for (const row of rows) row.forEach((n, at) => { place[n] = at - row.length / 2; });
  for (const row of backwards ? [...rows].reverse() : rows) {
    const wish = new Map(row.map((n) => [n, mean(beside[n].map((m) => place[m]), place[n])]));
    row.sort((a, b) => wish.get(a) - wish.get(b));
    row.forEach((n, at) => { place[n] = at - row.length / 2; });
  }
}
const mean = (numbers, otherwise) => (numbers.length ? sum(numbers) / numbers.length : otherwise);

/** The middles of nodes: near their neighbours', and apart from those in the row. */
function placed(rows, net) {
  const x = [];
  for (const row of rows) {
    let at = 0;
    for (const n of row) { x[n] = at + net.width[n] / 2; at += net.width[n] + GAP.x; }
    for (const n of row) x[n] -= at / 2;
  }
  for (let n = 0; n < 2 * SWEEPS; n++) {
    const beside = n % 2 ? net.after : net.before;
    for (const row of n % 2 ? [...rows].reverse() : rows) {
      const wish = row.map((m) => mean(beside[m].map((k) => x[k]), x[m]));
      apart(row, wish, net.width).forEach((value, at) => { x[row[at]] = value; });
    }
  }
  return x;
}

/** Places as near to the wishes as they can be with the widths between: the mean of packing from
 * the left and from the right. */
function apart(row, wish, width) {
  const need = (a, b) => (width[row[a]] + width[row[b]]) / 2 + GAP.x;
  const right = [...wish], left = [...wish];
  for (let n = 1; n < row.length; n++) right[n] = Math.max(right[n], right[n - 1] + need(n - 1, n));
  for (let n = row.length - 2; n >= 0; n--) left[n] = Math.min(left[n], left[n + 1] - need(n, n + 1));
  return right.map((value, n) => (value + left[n]) / 2);
}

function drawn(rows, net, x, boxes, edges, forward) {
  const height = Math.max(...boxes.map((b) => b.h), 0), step = height + GAP.y;
  const y = net.rank.map((r) => r * step + height / 2);
  const width = (n) => net.width[n] / 2;
  const least = Math.min(0, ...x.map((value, n) => value - width(n)));
  const most = Math.max(0, ...x.map((value, n) => value + width(n)));
  const at = (n) => [x[n] - least + GAP.x, y[n] + GAP.y / 2];
  const lines = net.chains.map((chain, n) => {
    const points = chain.map(at);
    points[0] = [points[0][0], points[0][1] + height / 2];
    const last = points.length - 1;
    points[last] = [points[last][0], points[last][1] - height / 2];
    return forward[n][0] === edges[n][0] ? points : points.reverse();
  });
  return { places: boxes.map((_, n) => at(n)), lines, width: most - least + 2 * GAP.x,
    height: rows.length * step + GAP.y };
}

/** A smooth path through points from the top down. */
function curve(points) {
  let path = `M${fixed(points[0])}`;
  for (let n = 1; n < points.length; n++) {
    const [a, b] = [points[n - 1], points[n]], middle = (a[1] + b[1]) / 2;
    path += `C${fixed([a[0], middle])} ${fixed([b[0], middle])} ${fixed(b)}`;
  }
  return path;
}
const fixed = ([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`;
