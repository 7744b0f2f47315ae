// Actions on VMs, many at a time, as tasks of the server.
import { createSignal } from 'solid-js';
import type { Action } from '../model/actions';
import { isOver, type Failure, type Job } from '../model/jobs';
import type { Task, Vm } from '../model/types';
import { Problem, get, send, wordsOf } from './client';

const [jobs, setJobs] = createSignal<readonly Job[]>([]);
export { jobs };

/** Requests at a time; a browser has few connections for one server. */
const senders = 4;
/** Tasks at a time of one job. */
const openMax = 32;
const pollMs = 400;
let lastId = 0;

function update(id: number, change: (job: Job) => Job): void {
  setJobs((all) => all.map((job) => (job.id === id ? change(job) : job)));
}

function find(id: number): Job | undefined {
  return jobs().find((job) => job.id === id);
}

export function dismiss(id: number): void {
  setJobs((all) => all.filter((job) => job.id !== id));
}

/** Begins no more of them; what has begun goes on. */
export function stop(id: number): void {
  update(id, (job) => ({ ...job, isStopped: true }));
}

export function run(action: Action, vms: readonly Vm[]): void {
  const id = ++lastId;
  const job: Job = { id, doing: action.doing, total: vms.length, done: 0, failures: [], isStopped: false };
  setJobs((all) => [...all, job]);
  const waiting = new Tasks();
  const queue = [...vms];
  const one = async (vm: Vm): Promise<void> => {
    try {
      await waiting.room();
      const path = `/v1/vms/${encodeURIComponent(vm.uuid)}/${action.path}`;
      const response = await send('POST', path, { headers: { Prefer: 'respond-async' }, patience: 60 });
      const task = response.status === 202 ? response.headers.get('Location') : null;
      if (task === null) {
        update(id, (now) => ({ ...now, done: now.done + 1 }));
        return;
      }
      waiting.add(task, (why) => end(vm, why));
    } catch (error) {
      end(vm, wordsOf(error));
    }
  };
  const end = (vm: Vm, why: string | null): void => {
    const failure: Failure | null = why === null ? null : { uuid: vm.uuid, name: vm.name, why };
    update(id, (now) =>
      failure === null ? { ...now, done: now.done + 1 } : { ...now, failures: [...now.failures, failure] },
    );
  };
  const sender = async (): Promise<void> => {
    for (let vm = queue.shift(); vm !== undefined; vm = queue.shift()) {
      if (find(id)?.isStopped) {
        const left = queue.length + 1;
        queue.length = 0;
        update(id, (now) => ({ ...now, total: now.total - left }));
        return;
      }
      await one(vm);
    }
  };
  for (let n = 0; n < senders; n += 1) void sender();
  tidyUp(id);
}

/** What went well is not kept on the page for long. */
function tidyUp(id: number): void {
  const timer = setInterval(() => {
    const job = find(id);
    if (job !== undefined && !isOver(job)) return;
    clearInterval(timer);
    if (job?.failures.length === 0) setTimeout(() => dismiss(id), 6000);
  }, 500);
}

/** Tasks of the server that have not ended, asked for all at once. */
class Tasks {
  private open = new Map<string, (why: string | null) => void>();
  private timer: ReturnType<typeof setTimeout> | undefined;
  private rooms: (() => void)[] = [];

  add(path: string, end: (why: string | null) => void): void {
    this.open.set(path, end);
    this.timer ??= setTimeout(() => void this.ask(), pollMs);
  }

  async room(): Promise<void> {
    while (this.open.size >= openMax) await new Promise<void>((done) => this.rooms.push(done));
  }

  private async ask(): Promise<void> {
    const asked = [...this.open.keys()];
    try {
      if (asked.length === 1 && asked[0]) this.told(asked[0], await get<Task>(asked[0]));
      else await this.askAll(asked);
    } catch (error) {
      // Asked again, unless the server does not know it.
      if (error instanceof Problem && error.status === 404) this.forget(asked);
    }
    this.timer = this.open.size === 0 ? undefined : setTimeout(() => void this.ask(), pollMs);
    for (const done of this.rooms.splice(0)) done();
  }

  private async askAll(asked: readonly string[]): Promise<void> {
    const answer = await get<Task[] | { tasks: Task[] }>('/v1/tasks');
    const byPath = new Map((Array.isArray(answer) ? answer : answer.tasks).map((task) => [`/v1/tasks/${task.id}`, task]));
    const missing: string[] = [];
    for (const path of asked) {
      const task = byPath.get(path);
      if (task) this.told(path, task);
      else missing.push(path);
    }
    this.forget(missing);
  }

  private forget(paths: readonly string[]): void {
    for (const path of paths) this.end(path, 'its end was not heard of');
  }

  private told(path: string, task: Task): void {
    if (task.status === 'pending') return;
    this.end(path, task.status === 'success' ? null : (task.detail ?? task.status));
  }

  private end(path: string, why: string | null): void {
    const end = this.open.get(path);
    this.open.delete(path);
    end?.(why);
  }
}
