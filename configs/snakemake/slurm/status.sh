#!/usr/bin/env bash
# What Snakemake asks about a job of SLURM: prints running, success or failed.
# scontrol knows a job until some minutes after its end (MinJobAge), sacct, if there is one, longer.

answer=$(scontrol --oneliner show job "$1" 2>&1)
case $answer in
  *JobState=*) state=$(sed 's/.*JobState=\([A-Z_]*\).*/\1/' <<<"$answer") ;;
  *'Invalid job id'*) state=$(sacct --noheader --parsable2 --allocations --format=State --jobs "$1" 2>/dev/null) ;;
  *) state=RUNNING ;;  # the controller does not answer now
esac
case $state in
  COMPLETED*) echo success ;;
  CONFIGURING* | COMPLETING* | PENDING* | REQUEUE* | RESIZING* | RUNNING* | SIGNALING* | STAGE_OUT* | STOPPED* | SUSPENDED*) echo running ;;
  *) echo failed ;;
esac
