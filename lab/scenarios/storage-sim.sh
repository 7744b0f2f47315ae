# The storage suite on files with made-up delays, then failures and hangs that are asked for.
. /lab/lib.sh
. /lab/storage.sh
. /lab/storage-files.sh
start_xylemd

storage_suite sim path=/srv/vdis attach=exp:200ms activate=exp:50ms tail=5%:2s create=100ms seed=1

echo "== what is asked for"
check "a setting that cannot be read is named" refused_with 's: attach="soon": expected' \
    xy sr-create s sim path=/srv/slow attach=soon
check "sr-create slow" xy sr-create slow sim path=/srv/slow attach=3s
check "sr-create failing" xy sr-create failing sim path=/srv/failing fail=attach:100%
check "sr-create hanging" xy sr-create hanging sim path=/srv/hanging hang=activate:100%
for sr in slow failing hanging; do
    check "a VDI of $sr" xy vdi-create $sr:one 1M
    vdi_unikernel on-$sr $sr:one w
done
host_state >$storage_before
begun=$(now)
check "a VM on slow storage" xy create -q /tmp/on-slow.cfg
check "takes the time that it is to take" [ "$(seconds_since "$begun" | cut -d . -f 1)" -ge 3 ]
check "destroy on-slow" xy destroy on-slow
check "a failure is told" refused_with 'failing:one: attach was made to fail' xy create -q /tmp/on-failing.cfg
begun=$(now)
check "a hang ends" refused_with 'hanging:one: no answer within 30 s' xy create -q /tmp/on-hanging.cfg
check "in bounded time" within 60 "$begun"
check "nothing is attached" wait_for "same_attached" 60
