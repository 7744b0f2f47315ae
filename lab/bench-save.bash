# bench-save.bash TOOL ROUNDS VMS...: prints "SAMPLE NAME VALUE" lines. By xy or xl: ROUNDS saves and restores of a Linux guest
# of each kind with 128 MB, disk and vif; then three times as many restores of a unikernel beside so many other VMs.
. /lab/lib.sh
tool=$1
rounds=$2
shift 2
mkdir -p /saved

clock() { now=${EPOCHREALTIME/./}; }

# timed NAME COMMAND...: one sample, in seconds.
timed() {
    local name=$1 begin us
    shift
    clock
    begin=$now
    "$@" || fail "$*"
    clock
    us=$((now - begin))
    echo "SAMPLE $name-seconds $((us / 1000000)).$(printf '%06d' $((us % 1000000)))"
}

create() { $tool create -q "/tmp/$1.cfg" >/dev/null || fail "create $1"; }
restore() { if [ "$tool" = xy ]; then xy restore "$1" >/dev/null; else xl restore "$1" >/dev/null 2>>/results/xl.log; fi; }
save() { if [ "$tool" = xy ]; then xy save "$1" "$2" >/dev/null; else xl save "$1" "$2" >/dev/null 2>>/results/xl.log; fi; }
# ticks NAME: how far the guest has counted; it begins anew in no restore.
ticks() { grep -o 'tick=[0-9]*' "$(console_log "$1")" | tail -n 1 | cut -d = -f 2; }
goes_on() { wait_for "[ \"\$(ticks $1)\" -gt $(($2 + 1)) ]" 60; }
# trace NAME: where the time went, for who reads the results.
trace() { [ "$tool" = xl ] || { echo "== $1" && xy trace "$1" && xy hypercalls; } >>/results/traces 2>&1; }

linux() {
    local name=linux-$1 round before
    cp /guest/disk.img "/$1.img"
    # Native: this machine's emulation of the other modes kills PVH guests.
    linux_cfg "$name" "type = '$1'" "tsc_mode = 'native'" "memory = 128" "vif = ['bridge=xenbr0']" "disk = ['/$1.img,raw,xvda,w']" \
        "extra = 'console=hvc0 quiet $FAST_BOOT xylem.ip=10.0.0.5 xylem.tick=1'"
    sed -i "s,/guest/vmlinuz,/guest/vmlinux," "/tmp/$name.cfg"
    create "$name"
    console_wait "$name" 'XYLEM-GUEST: ready' 600 || fail "$name is not up"
    # The first time is not counted: what is done once is done.
    for round in $(seq 0 "$rounds"); do
        sleep 3
        before=$(ticks "$name")
        if [ "$round" = 0 ]; then
            save "$name" /saved/linux && restore /saved/linux || fail "save and restore of $name"
        else
            timed "$name-save" save "$name" /saved/linux
            trace "$name"
            echo "SAMPLE $name-file-bytes $(stat -c %s /saved/linux)"
            sleep 1
            timed "$name-restore" restore /saved/linux
            trace "$name"
        fi
        goes_on "$name" "$before" || fail "$name does not go on"
        rm /saved/linux
    done
    wait_for 'ping -c 1 -W 2 10.0.0.5' 60 || fail "$name has no network"
    $tool destroy "$name"
}

unikernels() {
    local running=0 at round
    unikernel_cfg probe "type = 'pv'"
    create probe
    console_wait probe 'hello mode' 60 || fail "the unikernel is not up"
    save probe /saved/probe || fail "save the unikernel"
    for at; do
        while [ $running -lt "$at" ]; do
            running=$((running + 1))
            unikernel_cfg "base$running" "type = 'pv'"
            create "base$running"
        done
        sleep 2
        for round in $(seq 0 $((rounds * 3))); do
            if [ "$round" = 0 ]; then
                restore /saved/probe || fail "restore the unikernel"
            else
                timed "unikernel-restore-at-$at" restore /saved/probe
                trace probe
            fi
            wait_for "grep -q 'resumed elsewhere' $(console_log probe)" 30 || fail "the unikernel does not go on"
            $tool destroy probe || fail "destroy the unikernel"
            rm -f "$(console_log probe)"
            # The old domain's last pages go while nobody measures.
            sleep 0.3
        done
    done
}

[ "$tool" = xl ] || start_xylemd
linux pvh
linux pv
unikernels "$@"
