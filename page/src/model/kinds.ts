// Groups of steps, each with a colour of the timeline.

export type StepKind = 'storage' | 'domain' | 'memory' | 'store' | 'device' | 'wait' | 'other';

export const stepKinds: readonly { kind: StepKind; label: string }[] = [
  { kind: 'domain', label: 'Xen' },
  { kind: 'memory', label: 'memory and images' },
  { kind: 'store', label: 'store' },
  { kind: 'storage', label: 'disks' },
  { kind: 'device', label: 'devices and networks' },
  { kind: 'wait', label: 'guest or backend' },
  { kind: 'other', label: 'other' },
];

/** The first that matches the name of a step's stage. */
const patterns: readonly [RegExp, StepKind][] = [
  [/^await|^ask the guest|^say|^greet/, 'wait'],
  [/disk|\bCD|attach|detach/i, 'storage'],
  [/build|load|save|dump|send|receive|image|bootloader|check the file/, 'memory'],
  [/record|nodes|define|condemn|introduce|note|settle|report|forget/, 'store'],
  [/device|bridge|network|script|interface|PCI|close/i, 'device'],
  [/domain|pause|suspend|resume|fence|stay/, 'domain'],
];

export function kindOf(stage: string): StepKind {
  for (const [pattern, kind] of patterns) if (pattern.test(stage)) return kind;
  return 'other';
}
