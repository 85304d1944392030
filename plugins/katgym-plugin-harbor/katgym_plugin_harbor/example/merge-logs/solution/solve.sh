#!/bin/bash
set -e
cd /app
grep -h ERROR logs/web.log logs/db.log | sort > errors.log
