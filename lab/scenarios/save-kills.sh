# lab-addition: lvm
# A Linux guest that checks its own memory, disk and network is saved, restored, checkpointed and reverted, and each time the
# daemon is killed at a random moment. After each kill the guest runs on, once, or is whole in its file or checkpoint, and the
# next daemon knows which. Words:
#   kills=100         how often
#   seed=1            of the random choices
. /lab/lib.sh
. /lab/storage-lvm.sh
kills=100 seed=1
for word in "$@"; do
    case $word in
        kills=* | seed=*) eval "${word%%=*}='${word#*=}'" ;;
        *) fail "there is no '$word'" ;;
    esac
done
mkdir -p /saved
file=/saved/web

# random COUNT: sets `chosen` to a number below it; the same ones for each run with a seed.
random() {
    seed=$(((seed * 1103515245 + 12345) % 2147483648))
    chosen=$((seed / 65536 % $1))
}

# lines KEY: how often the guest has said it.
lines() { grep -c "XYLEM-GUEST: $1=" "$(console_log web)"; }
goes_on() {
    for lab_key in io mem tick; do
        lab_lines=$(lines $lab_key)
        wait_for "[ \$(lines $lab_key) -gt $((lab_lines + 1)) ]" 120 || {
            echo "no more lines $lab_key="
            return 1
        }
    done
    ! grep '=failed' "$(console_log web)"
}
domains() { xl list | awk '$1 ~ /^web/' | wc -l; }
runs() { [ "$(domains)" = 1 ] && xl list web | awk 'NR == 2 && $5 ~ /[psc]/ { exit 1 }'; }
gone() { [ "$(domains)" = 0 ]; }
has_checkpoint() { xy checkpoint-list web | awk -v name="$1" 'NR > 1 && $2 == name { found = 1 } END { exit !found }'; }
snapshots() { xy vdi-list s | grep -c ':ck-'; }
# unfinished: notes of an operation that has not ended.
unfinished() { xenstore-ls -f /xylem 2>/dev/null | grep -q '/saving = '; }
settled() {
    ! xy explain web 2>/dev/null | grep -q settle || return 1
    ! unfinished || return 1
    runs || gone
}

# act OPERATION
act() {
    case $1 in
        save) xy save web $file ;;
        save-c) xy save -c web $file ;;
        restore) xy restore $file ;;
        checkpoint) xy checkpoint web killed ;;
        revert) xy revert web base ;;
    esac
}

truncate -s 256M /tmp/disk.lvm
disk=$(losetup -f)
losetup "$disk" /tmp/disk.lvm
start_xylemd
check "sr-create" xy sr-create s lvmthin "device=$disk"
check "vdi-create" xy vdi-create s:web 16M
put s:web
host_state >/results/state.before
linux_cfg web "type = 'pvh'" "tsc_mode = 'native'" "memory = 128" "disk = ['s:web,,xvda,w']" "vif = ['bridge=xenbr0']" \
    "extra = 'console=hvc0 quiet $FAST_BOOT xylem.ip=10.0.0.5 xylem.io=1 xylem.mem=4 xylem.tick=1'"
check "create" xy create -q /tmp/web.cfg
check "it is up" console_wait web 'XYLEM-GUEST: mem=1' 400
check "a checkpoint" xy checkpoint web base

# How long each takes undisturbed, in tenths of seconds: the moments to choose from.
for operation in save restore save-c checkpoint revert; do
    begun=$(now)
    check "$operation" act $operation || exit
    long=$(seconds_since "$begun" | awk '{ print int($1 * 11) + 1 }')
    eval "long_$(echo $operation | tr - _)=$long"
    [ $operation != restore ] || rm -f $file
    check "it goes on" eval "[ $operation = save ] || goes_on" || exit
done
rm -f $file
check "checkpoint-destroy" xy checkpoint-destroy web killed

where=runs
for number in $(seq "$kills"); do
    case $where in
        runs)
            random 4
            operation=$(echo save save-c checkpoint revert | cut -d ' ' -f $((chosen + 1)))
            ;;
        file) operation=restore ;;
        checkpoint) operation=revert ;;
    esac
    eval "random \$long_$(echo $operation | tr - _)"
    delay=$((chosen / 10)).$((chosen % 10))
    act $operation >/tmp/act.out 2>&1 &
    acting=$!
    sleep $delay
    kill_xylemd
    wait $acting
    start_xylemd
    wait_for settled 120
    check "$number: after $delay s of a $operation it is known what became of it" settled || exit
    if runs; then
        now_at=runs
    elif [ $operation = revert ]; then
        now_at=checkpoint
    else
        now_at=file
    fi
    case $operation-$now_at in
        save-runs) check "$number: it has no file" [ ! -e $file ] || exit ;;
        save-file | restore-file) check "$number: its file is there" [ -e $file ] || exit ;;
        restore-runs | save-c-runs) rm -f $file ;;
        checkpoint-runs)
            if has_checkpoint killed; then
                check "$number: the checkpoint can be destroyed" xy checkpoint-destroy web killed || exit
            fi
            ;;
        revert-*) ;;
        *) check "$number: a $operation leaves it running" false || exit ;;
    esac
    check "$number: no snapshot but the first is left" [ "$(snapshots)" = 1 ] || exit
    [ $now_at != runs ] || check "$number: it goes on" goes_on || exit
    echo "row: kill=$number operation=$operation delay_s=$delay from=$where to=$now_at $(tail -n 1 /tmp/act.out)"
    where=$now_at
done
[ $where != file ] || check "restore" xy restore $file
[ $where != checkpoint ] || check "revert" xy revert web base
check "it goes on" goes_on
check "it answers" wait_for 'ping -c 1 -W 2 10.0.0.5' 60
check "its memory and disk were right all the time" eval '! grep "=failed" "$(console_log web)"'
check "it obeys" xy shutdown -w web
check "destroy the checkpoint" xy checkpoint-destroy web base
check "dom0 is as before" same_state /results/state.before
check "destroy the disk" xy vdi-destroy s:web
check "sr-destroy" xy sr-destroy s
no_group_is_left
