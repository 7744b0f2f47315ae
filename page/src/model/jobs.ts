// What was asked for many VMs at once: how far it is, and what failed.

export interface Failure {
  uuid: string;
  name: string;
  why: string;
}

export interface Job {
  id: number;
  /** "Starting". */
  doing: string;
  total: number;
  done: number;
  failures: Failure[];
  /** No more are begun. */
  isStopped: boolean;
}

export function isOver(job: Job): boolean {
  return job.done + job.failures.length >= job.total;
}

export function progressWords(job: Job): string {
  const ended = job.done + job.failures.length;
  const failed = job.failures.length === 0 ? '' : `, ${job.failures.length} failed`;
  if (job.isStopped && isOver(job)) return `${job.doing}: stopped after ${ended}${failed}`;
  return `${job.doing}: ${ended} of ${job.total}${failed}`;
}

/** Those that failed for the same reason together, in the order of the first of each. */
export function byReason(failures: readonly Failure[]): { why: string; names: string[] }[] {
  const groups = new Map<string, string[]>();
  for (const failure of failures) {
    const why = failure.why.replaceAll(failure.name, '…');
    const names = groups.get(why);
    if (names) names.push(failure.name);
    else groups.set(why, [failure.name]);
  }
  return [...groups].map(([why, names]) => ({ why: names.length === 1 ? why.replaceAll('…', names[0] ?? '') : why, names }));
}
