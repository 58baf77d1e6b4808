# Programs that try to outlive their run, in a unified hierarchy and on this kernel.
check escapes.none kennel doctor --prove
cat /tmp/said
echo end
