# What bad input and a killed daemon get: one clear line, and nothing left.
. /lab/lib.sh
start_xylemd
host_state >/results/state.before

# refused NAME PATTERN LINES...: the configuration is refused with one line that matches.
refused() {
    name=$1 pattern=$2
    shift 2
    printf '%s\n' "$@" >/tmp/bad.cfg
    xy create -q /tmp/bad.cfg >/tmp/bad.out 2>/tmp/bad.err
    status=$?
    cat /tmp/bad.err
    check "$name: exit status 1" [ $status = 1 ]
    check "$name: one line" [ "$(wc -l </tmp/bad.err)" = 1 ]
    check "$name: says what and where" grep -q -- "$pattern" /tmp/bad.err
    check "$name: leaves nothing" same_state /results/state.before
}

good="kernel = '/guest/unikernel'"
echo "== bad configurations"
refused "missing kernel" 'bad.cfg:2: kernel: .*/nowhere' "name = 'b'" "kernel = '/nowhere'" "memory = 8"
refused "kernel that is none" 'bad.cfg:2: kernel: .*/lab/lib.sh' "name = 'b'" "kernel = '/lab/lib.sh'" "memory = 8"
refused "too little memory" 'bad.cfg:3: memory: ' "name = 'b'" "kernel = '/guest/vmlinuz'" "memory = 8"
refused "more memory than there is" 'bad.cfg:3: memory: .*free' "name = 'b'" "$good" "memory = 100000"
refused "missing disk" 'bad.cfg:4: disk.*/nowhere' "name = 'b'" "$good" "memory = 8" "disk = ['/nowhere,raw,xvda,w']"
refused "second disk missing" 'bad.cfg:4: disk.*/nowhere' "name = 'b'" "$good" "memory = 8" \
    "disk = ['/guest/disk.img,raw,xvda,w', '/nowhere,raw,xvdb,w']"
refused "missing bridge" 'bad.cfg:4: vif.*br99' "name = 'b'" "$good" "memory = 8" "vif = ['bridge=br99']"
refused "a bridge that is none" 'bad.cfg:4: vif.*lo' "name = 'b'" "$good" "memory = 8" "vif = ['bridge=lo']"
refused "unknown key" 'bad.cfg:3: memroy: ' "name = 'b'" "$good" "memroy = 8"
refused "no kernel" 'bad.cfg: ' "name = 'b'"

echo "== a name in use"
unikernel_cfg twin
check "create twin" xy create -q /tmp/twin.cfg
host_state >/tmp/state.twin
xy create -q /tmp/twin.cfg 2>/tmp/twin.err
check "second twin: exit status 1" [ $? = 1 ]
cat /tmp/twin.err
check "second twin: says so" grep -q 'twin.cfg:1: name: .*twin' /tmp/twin.err
check "second twin: leaves nothing" same_state /tmp/state.twin

echo "== a guest that dies at once, and a killed daemon with running VMs"
kill_xylemd
start_xylemd
check "twin was adopted" sh -c 'xy list -l | grep -q twin'
check "twin can be destroyed" xy destroy twin
check "nothing of twin is left" same_state /results/state.before

echo "== killed in the middle of a create"
cp /guest/disk.img /tmp/disk1.img
unikernel_cfg half "type = 'pv'" "disk = ['/tmp/disk1.img,raw,xvda,w']" "vif = ['bridge=xenbr0']"
finished=0
gone=0
for delay in 0.02 0.05 0.08 0.12 0.16 0.2 0.25 0.3 0.35 0.4 0.5 0.7 1 end; do
    xy create -q /tmp/half.cfg >/dev/null 2>&1 &
    creator=$!
    if [ $delay = end ]; then wait $creator; else sleep $delay; fi
    kill_xylemd
    wait $creator
    # What the dead daemon left, for the log.
    xenstore-ls /xylem 2>/dev/null | sed "s/^/$delay: /" >>/results/left-behind
    start_xylemd
    # What is being taken down is still listed, and may be gone a moment later.
    if xy list -l | grep -q '"half"' && xy destroy half; then
        finished=$((finished + 1))
        check "killed at $delay: finished, destroyed, nothing is left" same_state /results/state.before
    else
        gone=$((gone + 1))
        check "killed at $delay: gone, nothing is left" wait_for 'same_state /results/state.before' 60
    fi
done
echo "$gone gone, $finished finished; $(grep -c domid /results/left-behind) killed with nodes written"
check "one was killed early and one came through" [ $gone -gt 0 -a $finished -gt 0 ]
