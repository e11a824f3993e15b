"""What normless needs beside other libraries, each in a module that imports its library."""
