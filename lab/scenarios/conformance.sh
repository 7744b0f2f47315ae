# The conformance suite over the hypercall boundary, and every device of dom0 that Xylem uses, on this
# Xen. The simulator runs the same suite in `cargo test`.
. /lab/lib.sh
# The suite binds the signal of domains' deaths, which only one may have: the store goes first.
killall xylem-xenstored xenstored oxenstored xenconsoled 2>/dev/null
sleep 1
/root/xen_probe || fail "xen_probe"
/root/xen_conformance
