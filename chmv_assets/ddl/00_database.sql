-- The demo: a web shop's analytics. Files run in name order, statements in file order.
CREATE DATABASE IF NOT EXISTS shop;
